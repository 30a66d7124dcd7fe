"""The talker's runner for a backbone that SGLang runs: everything else of a decode step in two captured graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from omni_python.layers.captured_step import CapturedStep
from omni_python.layers.fused_decoder import MAX_ROWS
from omni_python.models.qwen3_omni.decode_rows import DecodeInput, Frame
from omni_python.models.qwen3_omni.talker import Talker
from omni_python.models.qwen3_omni.talker_runner import TalkerModelRunner, TalkerRequest

if TYPE_CHECKING:
    from omni_python.models.qwen3_omni.talker_frames import TalkerFrames


class SGLangTalkerRunner(TalkerModelRunner):
    """Where its `fused_rows` are above 0; else it is a `TalkerModelRunner`. It has no cache of its own."""

    _split: _SplitStep | None = None

    def prepare(self) -> None:
        """Compile and capture; to be called once, before the first request."""
        if not self._fused_rows:
            return
        from omni_python.models.qwen3_omni.fused_code_predictor import FusedCodePredictor
        from omni_python.models.qwen3_omni.talker_frames import TalkerFrames

        predictor = FusedCodePredictor(self._talker.code_predictor)
        self._talker.code_predictor.fused = predictor
        self._talker.code_predictor.prepare(self._fused_rows)
        frames = TalkerFrames(self._talker, predictor, self._never, self._never_nor_end, self._fused_rows)
        self._split = _SplitStep(self._talker, frames, self._fused_rows)

    def release(self, row: TalkerRequest) -> None:
        if row.place is not None and self._split is not None:
            self._split.frames.release(row.place)
            row.place = None

    def decode_embeds(self, rows: Sequence[TalkerRequest]) -> torch.Tensor:
        if self._split is None:
            return super().decode_embeds(rows)
        for row in rows:
            if row.place is None:
                row.place = self._split.frames.admit(self.take_feedback(row), row.sampler)
        return self._split.embeds([self.decode_input(row) for row in rows])

    def advance(self, rows: Sequence[TalkerRequest], hidden: torch.Tensor, logits: torch.Tensor) -> None:
        # A batch has either prompts or decoding rows: SGLang mixes none where inputs are fed back.
        if self._split is None or rows[0].place is None:
            super().advance(rows, hidden, logits)
        else:
            self.take_frames(rows, self._split.complete([self.decode_input(row) for row in rows], hidden))


class _SplitStep:
    """The two halves of `TalkerFrames`, each captured."""

    def __init__(self, talker: Talker, frames: TalkerFrames, max_running: int) -> None:
        weight = talker.codec_head.weight
        rows = min(MAX_ROWS, max_running)
        self.frames = frames
        self._hidden = torch.zeros(MAX_ROWS, weight.shape[1], dtype=weight.dtype, device=weight.device)
        self._before = CapturedStep(frames.embeds, frames.padding, rows, weight.device)
        self._after = CapturedStep(self._complete, frames.padding, rows, weight.device)
        self._before.prepare()
        self._after.prepare()

    def embeds(self, rows: Sequence[DecodeInput]) -> torch.Tensor:
        """The backbone's next input [rows, H]; the next call may overwrite it."""
        if len(rows) <= MAX_ROWS:
            return self._before.run(self.frames.columns(rows))
        made = []
        for at in range(0, len(rows), MAX_ROWS):
            made.append(self.embeds(rows[at : at + MAX_ROWS]).clone())
            torch.cuda.current_stream(self._hidden.device).synchronize()  # the next part goes through the same buffers
        return torch.cat(made)

    def complete(self, rows: Sequence[DecodeInput], hidden: torch.Tensor) -> list[Frame]:
        """The frame of each row, from the backbone's normed output [rows, H]."""
        made: list[Frame] = []
        for at in range(0, len(rows), MAX_ROWS):
            part = rows[at : at + MAX_ROWS]
            self._hidden[: len(part)].copy_(hidden[at : at + len(part)])
            made += self.frames.fetch(self._after, part)
        return made

    def _complete(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.frames.complete(inputs, self._hidden[: inputs.shape[1]])
