"""Runs an autoregressive model whose every step is completed by a secondary head and fed back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
from torch import nn

from omni_python.layers.decoder import Decoder
from omni_python.model_runner.base import ARModelRunner, ARRequest, ForwardBatch, PromptInput, R

S = TypeVar("S", bound=ARRequest, contravariant=True)


class FeedbackStrategy(Protocol[S]):
    """What of the feedback is the model's own."""

    def prefill_forward(self, row: S) -> PromptInput:
        """What the request begins with."""

    def write_buffers(self, rows: Sequence[S]) -> torch.Tensor:
        """Each row's next input [rows, H], made from what `extract_output` left of the last step."""

    def extract_output(self, rows: Sequence[S], hidden: torch.Tensor) -> None:
        """Run the secondary head on `hidden` [rows, H] and each row's newest token; keep its output with the row."""


class FeedbackARModelRunner(ARModelRunner[R]):
    """Backbone, head, and the strategy's secondary head, all within one step and batched over its rows.

    Rows that end with the newest token are not given to the secondary head.
    """

    def __init__(self, backbone: Decoder, head: nn.Linear, strategy: FeedbackStrategy[R]) -> None:
        self._backbone = backbone
        self._head = head
        self._strategy = strategy

    def allocate(self, num_pages: int) -> None:
        self.cache = self._backbone.new_cache(num_pages)

    def prompt_input(self, row: R) -> PromptInput:
        return self._strategy.prefill_forward(row)

    def decode_embeds(self, rows: Sequence[R]) -> torch.Tensor:
        return self._strategy.write_buffers(rows)

    def forward(self, batch: ForwardBatch[R]) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, _ = self.through(self._backbone, batch)
        last = hidden[batch.last]
        return last, self._head(last)

    def after_sampling(self, rows: Sequence[R], hidden: torch.Tensor) -> None:
        self._strategy.extract_output(rows, hidden)
