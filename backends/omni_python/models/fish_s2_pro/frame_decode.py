"""The whole decode step in one captured graph: the last frame's embedding, trunk, choice of a first code, head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from omni_python.layers.captured_step import CapturedStep
from omni_python.layers.fused_decoder import MAX_ROWS, FusedDecoder
from omni_python.layers.fused_frame_completer import FusedFrameCompleter
from omni_python.layers.kernels.attention import Where
from omni_python.layers.kernels.frames import embed_frames
from omni_python.layers.kernels.linear import linear
from omni_python.layers.kernels.recent import RecentDraws, choose_with_recent
from omni_python.layers.kv_cache import PagedKVCache
from omni_python.layers.page_tables import PageTables
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.fish_s2_pro.dual_ar import DualAR
from omni_python.models.fish_s2_pro.first_code import AGAIN_TEMPERATURE, AGAIN_TOP_P, RECENT

_SPLITS = 16
_SLOT, _PAST, _TOP_K, _NO_END, _TEMPERATURE, _TOP_P, _PENALTY, _FIRST_RECENT = range(8)
"""Rows of a step's input, int32 [columns, rows] with floats as their bits. After the recent tokens come the last
frame's codes, and then the random numbers: two for the first code, one for each other."""


@dataclass(slots=True)
class SpeechRow:
    """A request's place in the device's buffers, and its next input but for the number of cached tokens."""

    slot: int
    column: np.ndarray
    sampler: TokenSampler


class FrameDecode:
    """Steps of requests whose prompt and first frame are computed."""

    def __init__(self, model: DualAR, head: FusedFrameCompleter, cache: PagedKVCache, max_running: int) -> None:
        """`cache` has a last page that no request owns, for the rows that pad a batch. `head` is the model's own."""
        device = model.speak.weight.device
        config = model.config
        self._model = model
        self._head = head
        self.decoder = FusedDecoder(model.trunk, MAX_ROWS, _SPLITS)
        self._cache = cache
        self._tables = PageTables(cache, max_running, device)
        self._frame = slice(_FIRST_RECENT + RECENT, _FIRST_RECENT + RECENT + config.books)
        self._first_draws = slice(self._frame.stop, self._frame.stop + 2)
        self._head_draws = slice(self._first_draws.stop, self._first_draws.stop + config.books - 1)
        self._step = CapturedStep(self._compute, self._new_column(max_running), min(MAX_ROWS, max_running), device)

    def prepare(self) -> None:
        self._step.prepare()

    def admit(self, pages: Sequence[int], token: int, frame: Sequence[int], sampler: TokenSampler) -> SpeechRow:
        """Take in a request that has generated `token`, completed to `frame`."""
        slot = self._tables.admit(pages)
        params = sampler.params
        column = self._new_column(slot)
        floats = column.view(np.float32)
        column[_TOP_K] = min(params.top_k, self._model.config.codes + 1)
        column[_NO_END] = params.ignore_eos
        floats[_TEMPERATURE] = params.temperature
        floats[_TOP_P] = params.top_p
        floats[_PENALTY] = params.repetition_penalty
        column[_FIRST_RECENT] = token
        column[self._frame] = frame
        row = SpeechRow(slot, column, sampler)
        self._draw([row])
        return row

    def release(self, row: SpeechRow) -> None:
        self._tables.release(row.slot)

    def step(self, rows: Sequence[SpeechRow], past: Sequence[int], generated: Sequence[int]) -> list[list[int] | None]:
        """The next frame of each of at most MAX_ROWS rows that have `past` cached and `generated` tokens; None where
        the model's output is not a number. The first code is the token, and where that is the end the others mean
        nothing."""
        columns = np.stack([row.column for row in rows], axis=1)
        columns[_PAST] = past
        # While the device computes, the next step's random numbers are drawn.
        made = self._step.fetch(columns, lambda: self._draw(rows))
        for row, count, frame in zip(rows, generated, made[:, 1:], strict=True):
            row.column[_FIRST_RECENT + count % RECENT] = frame[0]
            row.column[self._frame] = frame
        return [codes if valid else None for valid, *codes in made.tolist()]

    def _draw(self, rows: Sequence[SpeechRow]) -> None:
        for row in rows:
            if row.sampler.greedy:
                continue
            floats = row.column.view(np.float32)
            floats[self._first_draws] = row.sampler.uniforms(2).numpy()
            floats[self._head_draws] = row.sampler.uniforms(self._model.head.groups - 1).numpy()

    def _compute(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.complete(inputs, self.trunk(inputs))

    def trunk(self, inputs: torch.Tensor) -> torch.Tensor:
        """The trunk's normed output [rows, H]."""
        model = self._model
        config = model.config
        words = model.embeddings.weight[config.semantic_start : config.semantic_start + config.codes]
        scale = 1.0 / math.sqrt(config.books + 1)
        x = embed_frames(inputs[self._frame], model.codebook_embeddings.weight, words, scale)
        angles = model.trunk.rotary.angles(inputs[_PAST].expand(3, -1))
        where = Where(self._tables.tensor, inputs[_SLOT], inputs[_PAST], angles.cos(), angles.sin())
        hidden: torch.Tensor = model.trunk.norm(self.decoder(x, self._cache, where))
        return hidden

    def complete(self, inputs: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """From the trunk's output: int32 [rows, 1 + books], whether the logits are numbers, and the frame's codes."""
        model, floats = self._model, inputs.view(torch.float32)
        sampling = floats[_TEMPERATURE], floats[_TOP_P], inputs[_TOP_K]
        temperature, top_p, top_k = sampling
        recent = inputs[_FIRST_RECENT : _FIRST_RECENT + RECENT]
        draws = RecentDraws(
            recent, temperature, top_k, top_p, floats[_PENALTY], inputs[_NO_END], floats[self._first_draws]
        )
        logits = linear(hidden, model.speak.weight, dtype=torch.float32)
        chosen = choose_with_recent(logits, draws, AGAIN_TEMPERATURE, AGAIN_TOP_P)
        first = model.head.embeddings(chosen[:, 1].clamp(max=model.config.codes - 1))  # the end has none
        codes, _ = self._head(hidden, first, *sampling, floats[self._head_draws].T)
        return torch.cat((chosen, codes), dim=1).to(torch.int32)

    def _new_column(self, slot: int) -> np.ndarray:
        column = np.zeros(self._head_draws.stop, np.int32)
        column[_SLOT] = slot
        column[_FIRST_RECENT : _FIRST_RECENT + RECENT] = -1
        column.view(np.float32)[[_TEMPERATURE, _TOP_P, _PENALTY]] = 0.0, 1.0, 1.0
        return column
