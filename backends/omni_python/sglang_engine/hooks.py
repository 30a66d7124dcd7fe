"""The owner's part of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from omni_python.model_runner.base import PromptInput


@dataclass(slots=True, frozen=True)
class Choice:
    """What follows a row's newest token; `finish` is "stop", "length" or None, `failed` ends it without caching."""

    token: int
    finish: str | None = None
    failed: bool = False


class StepHooks(Protocol):
    """The owner's part of a step. Rows are named as in `Engine.add`; those that were aborted never appear."""

    def prompt(self, name: str) -> PromptInput | None:
        """The whole prompt; None where the row failed, and is about to be told so by `choose`."""

    def decode_embeds(self, names: Sequence[str]) -> torch.Tensor:
        """The rows' next inputs [rows, H]; with `feedback` alone."""

    def choose(self, names: Sequence[str], hidden: torch.Tensor, logits: torch.Tensor) -> list[Choice]:
        """The next token of each row, from its normed output [rows, H] and float32 logits [rows, V]."""
