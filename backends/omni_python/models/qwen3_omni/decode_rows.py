"""What goes into and comes out of the talker's captured decode step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni_python.model_runner.sampler import TokenSampler


@dataclass(slots=True)
class TalkerRow:
    """A request's place in the device's buffers, and its next input but for what a `DecodeInput` says."""

    slot: int
    column: np.ndarray
    sampler: TokenSampler


@dataclass(slots=True, frozen=True)
class DecodeInput:
    """A row of the next step: `past` tokens are cached, the rotary position is `past + delta`, and `text` is the token
    of the answer that is read now."""

    place: TalkerRow
    past: int
    delta: float
    text: int


@dataclass(slots=True, frozen=True)
class Frame:
    """What a step gives to a row: `codes` of all groups, the first of which is the token. The others mean nothing where
    that ends the answer, and none does where not `valid`: the model's output is then not a number."""

    valid: bool
    codes: list[int]
