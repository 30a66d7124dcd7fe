"""The talker's whole decode step in one captured graph: feedback, backbone, head, choice of a token, code predictor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from omni_python.layers.captured_step import CapturedStep
from omni_python.layers.fused_decoder import MAX_ROWS, FusedDecoder
from omni_python.layers.kernels.attention import Where
from omni_python.layers.kernels.linear import linear
from omni_python.layers.kv_cache import PagedKVCache
from omni_python.model_runner.sampler import RowSampling, TokenSampler, choose_tokens
from omni_python.models.qwen3_omni.decode_rows import DecodeInput, Frame, TalkerRow
from omni_python.models.qwen3_omni.fused_code_predictor import FusedCodePredictor
from omni_python.models.qwen3_omni.talker import Talker

_SPLITS = 8

_INTS = ("slot", "past", "text", "top_k", "sampled", "ignore_end")
_FLOATS = ("position", "temperature", "top_p", "repetition_penalty", "uniform")
_COLUMN = {name: index for index, name in enumerate((*_INTS, *_FLOATS))}


class TalkerDecode:
    """Keeps what belongs to each request on the device, in slots; a step brings in what only the host knows."""

    def __init__(
        self,
        talker: Talker,
        predictor: FusedCodePredictor,
        never: torch.Tensor,
        never_nor_end: torch.Tensor,
        cache: PagedKVCache,
        max_running: int,
    ) -> None:
        """`cache` has a last page that no request owns, for the rows that pad a batch. `never` and `never_nor_end`
        bool [V] are the tokens not to be chosen, without and with the end of speech."""
        weight = talker.codec_head.weight
        device = weight.device
        self._talker = talker
        self.decoder = FusedDecoder(talker.model, MAX_ROWS, _SPLITS)
        self._predictor = predictor
        self._suppressed = (never, never_nor_end)
        self._cache = cache
        self._groups = talker.code_predictor.groups
        spare = cache.num_pages - 1
        self._page_table = torch.full((max_running + 1, spare + 1), spare, dtype=torch.int32, device=device)
        self._feedback = torch.zeros(max_running + 1, weight.shape[1], dtype=weight.dtype, device=device)
        self._seen = torch.zeros(max_running + 1, len(weight), dtype=torch.bool, device=device)
        self._yes = torch.ones((), dtype=torch.bool, device=device)
        self._free = list(range(max_running))
        self._step = CapturedStep(self._compute, self._new_column(max_running), min(MAX_ROWS, max_running), device)

    def prepare(self) -> None:
        self._step.prepare()

    def admit(self, pages: Sequence[int], feedback: torch.Tensor, sampler: TokenSampler) -> TalkerRow:
        """Take in a request whose prompt and first frame are computed, with its `feedback` [H]."""
        slot = self._free.pop()
        params = sampler.params
        self._page_table[slot, : len(pages)] = torch.tensor(pages, dtype=torch.int32).to(self._page_table.device)
        self._feedback[slot] = feedback
        if sampler.seen is None:
            self._seen[slot] = False
        else:
            self._seen[slot] = sampler.seen
        column = self._new_column(slot)
        floats = column.view(np.float32)
        column[_COLUMN["top_k"]] = params.top_k
        column[_COLUMN["sampled"]] = not sampler.greedy
        column[_COLUMN["ignore_end"]] = params.ignore_eos
        floats[_COLUMN["temperature"]] = params.temperature or 1.0
        floats[_COLUMN["top_p"]] = params.top_p
        floats[_COLUMN["repetition_penalty"]] = params.repetition_penalty
        row = TalkerRow(slot, column, sampler)
        self._draw(row)
        return row

    def release(self, row: TalkerRow) -> None:
        self._free.append(row.slot)

    def step(self, rows: Sequence[DecodeInput]) -> list[Frame]:
        """One token and frame of each row."""
        frames: list[Frame] = []
        for start in range(0, len(rows), MAX_ROWS):
            frames += self._step_few(rows[start : start + MAX_ROWS])
        return frames

    def _step_few(self, rows: Sequence[DecodeInput]) -> list[Frame]:
        columns = np.stack([row.place.column for row in rows], axis=1)
        columns[_COLUMN["past"]] = [row.past for row in rows]
        columns[_COLUMN["text"]] = [row.text for row in rows]
        columns.view(np.float32)[_COLUMN["position"]] = [row.past + row.delta for row in rows]

        def draw_next() -> None:
            for row in rows:
                self._draw(row.place)

        return [Frame(bool(valid), codes) for valid, *codes in self._step.fetch(columns, draw_next).tolist()]

    def _draw(self, row: TalkerRow) -> None:
        """The random numbers of the row's next step: one for the token, then those of the other groups."""
        if row.sampler.greedy:
            return
        floats = row.column.view(np.float32)
        floats[_COLUMN["uniform"]] = row.sampler.uniforms(1).numpy()[0]
        floats[len(_COLUMN) :] = row.sampler.uniforms(self._groups - 1).numpy()

    def _new_column(self, slot: int) -> np.ndarray:
        column = np.zeros(len(_COLUMN) + self._groups - 1, np.int32)
        column[_COLUMN["slot"]] = slot
        column.view(np.float32)[[_COLUMN[name] for name in ("temperature", "top_p", "repetition_penalty")]] = 1.0
        return column

    def _compute(self, inputs: torch.Tensor) -> torch.Tensor:
        """int32 [columns, rows] -> int32 [rows, 1 + groups]: whether the logits are numbers, and the frame's codes."""
        talker, floats = self._talker, inputs.view(torch.float32)
        ints = {name: inputs[_COLUMN[name]] for name in _INTS}
        numbers = {name: floats[_COLUMN[name]] for name in _FLOATS}
        slot = ints["slot"].long()
        angles = talker.model.rotary.angles(numbers["position"].expand(3, -1))
        where = Where(self._page_table, ints["slot"], ints["past"], angles.cos(), angles.sin())
        x = self._feedback[slot] + talker.project_text(ints["text"].long())
        x = self.decoder(x, self._cache, where)
        hidden = talker.model.norm(x)
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
        codes, rest = self._predictor(hidden, first, sampled, floats[len(_COLUMN) :].T)
        self._feedback[slot] = first + rest
        valid = logits.amax(dim=-1).isfinite()
        return torch.cat((valid[:, None], tokens[:, None], codes), dim=1).to(torch.int32)
