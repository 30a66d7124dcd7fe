"""What a step of the talker does around its backbone, on the device alone so that it can be captured: its input before,
and after it the head, the choice of a token, the code predictor, and the feedback for the next input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from omni_python.layers.captured_step import CapturedStep
from omni_python.layers.kernels.linear import linear
from omni_python.model_runner.sampler import RowSampling, TokenSampler, choose_tokens
from omni_python.models.qwen3_omni.decode_rows import DecodeInput, Frame, TalkerRow
from omni_python.models.qwen3_omni.fused_code_predictor import FusedCodePredictor
from omni_python.models.qwen3_omni.talker import Talker

_INTS = ("slot", "past", "text", "top_k", "sampled", "ignore_end")
_FLOATS = ("position", "temperature", "top_p", "repetition_penalty", "uniform")
COLUMN = {name: index for index, name in enumerate((*_INTS, *_FLOATS))}
"""Rows of a step's input, int32 [columns, rows] with floats as their bits; those after them are the code predictor's
random numbers."""


class TalkerFrames:
    """Keeps what belongs to each request on the device, in slots; a step brings in what only the host knows."""

    def __init__(
        self,
        talker: Talker,
        predictor: FusedCodePredictor,
        never: torch.Tensor,
        never_nor_end: torch.Tensor,
        max_running: int,
    ) -> None:
        """`never` and `never_nor_end` bool [V] are the tokens not to be chosen, without and with the end of speech."""
        weight = talker.codec_head.weight
        device = weight.device
        self._talker = talker
        self._predictor = predictor
        self._suppressed = (never, never_nor_end)
        self._groups = talker.code_predictor.groups
        self._feedback = torch.zeros(max_running + 1, weight.shape[1], dtype=weight.dtype, device=device)
        self._seen = torch.zeros(max_running + 1, len(weight), dtype=torch.bool, device=device)
        self._yes = torch.ones((), dtype=torch.bool, device=device)
        self._free = list(range(max_running))
        self.padding = self._new_column(max_running)
        """The column of a row that is not there."""

    def admit(self, feedback: torch.Tensor, sampler: TokenSampler) -> TalkerRow:
        """Take in a request whose prompt and first frame are computed, with its `feedback` [H]."""
        slot = self._free.pop()
        params = sampler.params
        self._feedback[slot] = feedback
        if sampler.seen is None:
            self._seen[slot] = False
        else:
            self._seen[slot] = sampler.seen
        column = self._new_column(slot)
        floats = column.view(np.float32)
        column[COLUMN["top_k"]] = min(params.top_k, self._seen.shape[1])
        column[COLUMN["sampled"]] = not sampler.greedy
        column[COLUMN["ignore_end"]] = params.ignore_eos
        floats[COLUMN["temperature"]] = params.temperature or 1.0
        floats[COLUMN["top_p"]] = params.top_p
        floats[COLUMN["repetition_penalty"]] = params.repetition_penalty
        row = TalkerRow(slot, column, sampler)
        self.draw([row])
        return row

    def release(self, row: TalkerRow) -> None:
        self._free.append(row.slot)

    def draw(self, rows: Sequence[TalkerRow]) -> None:
        """The random numbers of each row's next step: one for the token, then those of the other groups."""
        for row in rows:
            if row.sampler.greedy:
                continue
            floats = row.column.view(np.float32)
            floats[COLUMN["uniform"]] = row.sampler.uniforms(1).numpy()[0]
            floats[len(COLUMN) :] = row.sampler.uniforms(self._groups - 1).numpy()

    @staticmethod
    def columns(rows: Sequence[DecodeInput]) -> np.ndarray:
        """A step's input for `rows`."""
        columns = np.stack([row.place.column for row in rows], axis=1)
        columns[COLUMN["past"]] = [row.past for row in rows]
        columns[COLUMN["text"]] = [row.text for row in rows]
        columns.view(np.float32)[COLUMN["position"]] = [row.past + row.delta for row in rows]
        return columns

    def fetch(self, step: CapturedStep, rows: Sequence[DecodeInput]) -> list[Frame]:
        """Run `step`, which ends with `complete`, for `rows`."""
        # While the device computes, the next step's random numbers are drawn.
        fetched = step.fetch(self.columns(rows), lambda: self.draw([row.place for row in rows]))
        return [Frame(bool(valid), codes) for valid, *codes in fetched.tolist()]

    def embeds(self, inputs: torch.Tensor) -> torch.Tensor:
        """The backbone's input [rows, H]."""
        text = self._talker.project_text(inputs[COLUMN["text"]].long())
        return self._feedback[inputs[COLUMN["slot"]].long()] + text

    def complete(self, inputs: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """From the backbone's normed output [rows, H]: int32 [rows, 1 + groups], whether the logits are numbers, and
        the frame's codes."""
        talker, floats = self._talker, inputs.view(torch.float32)
        ints = {name: inputs[COLUMN[name]] for name in _INTS}
        numbers = {name: floats[COLUMN[name]] for name in _FLOATS}
        slot = ints["slot"].long()
        logits = linear(hidden, talker.codec_head.weight, dtype=torch.float32)
        sampled = ints["sampled"] != 0
        never, never_nor_end = self._suppressed
        tokens = choose_tokens(
            logits,
            RowSampling(
                sampled,
                numbers["temperature"],
                ints["top_k"].long(),
                numbers["top_p"],
                numbers["repetition_penalty"],
                numbers["uniform"],
            ),
            self._seen[slot],
            torch.where(ints["ignore_end"][:, None] != 0, never_nor_end, never),
        )
        self._seen.index_put_((slot, tokens), self._yes)
        first = talker.model.codec_embedding(tokens)
        codes, rest = self._predictor(hidden, first, sampled, floats[len(COLUMN) :].T)
        self._feedback[slot] = first + rest
        valid = logits.amax(dim=-1).isfinite()
        return torch.cat((valid[:, None], tokens[:, None], codes), dim=1).to(torch.int32)

    def _new_column(self, slot: int) -> np.ndarray:
        column = np.zeros(len(COLUMN) + self._groups - 1, np.int32)
        column[COLUMN["slot"]] = slot
        column.view(np.float32)[[COLUMN[name] for name in ("temperature", "top_p", "repetition_penalty")]] = 1.0
        return column
