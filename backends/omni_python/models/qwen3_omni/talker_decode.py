"""The talker's whole decode step in one captured graph: feedback, backbone, head, choice of a token, code predictor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_python.layers.captured_step import CapturedStep
from omni_python.layers.fused_decoder import MAX_ROWS, FusedDecoder
from omni_python.layers.kernels.attention import Where
from omni_python.layers.kv_cache import PagedKVCache
from omni_python.layers.page_tables import PageTables
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.qwen3_omni.decode_rows import DecodeInput, Frame, TalkerRow
from omni_python.models.qwen3_omni.fused_code_predictor import FusedCodePredictor
from omni_python.models.qwen3_omni.talker import Talker
from omni_python.models.qwen3_omni.talker_frames import COLUMN, TalkerFrames

_SPLITS = 8


class TalkerDecode:
    """The backbone between the two halves of `TalkerFrames`, and each request's page table."""

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
        device = talker.codec_head.weight.device
        self._model = talker.model
        self.decoder = FusedDecoder(talker.model, MAX_ROWS, _SPLITS)
        self._frames = TalkerFrames(talker, predictor, never, never_nor_end, max_running)
        self._cache = cache
        self._tables = PageTables(cache, max_running, device)
        self._step = CapturedStep(self._compute, self._frames.padding, min(MAX_ROWS, max_running), device)

    def prepare(self) -> None:
        self._step.prepare()

    def admit(self, pages: Sequence[int], feedback: torch.Tensor, sampler: TokenSampler) -> TalkerRow:
        """Take in a request whose prompt and first frame are computed, with its `feedback` [H]."""
        row = self._frames.admit(feedback, sampler)
        self._tables.write(row.slot, pages)
        return row

    def release(self, row: TalkerRow) -> None:
        self._frames.release(row)

    def step(self, rows: Sequence[DecodeInput]) -> list[Frame]:
        """One token and frame of each of at most MAX_ROWS rows."""
        return self._frames.fetch(self._step, rows)

    def _compute(self, inputs: torch.Tensor) -> torch.Tensor:
        floats = inputs.view(torch.float32)
        angles = self._model.rotary.angles(floats[COLUMN["position"]].expand(3, -1))
        where = Where(self._tables.tensor, inputs[COLUMN["slot"]], inputs[COLUMN["past"]], angles.cos(), angles.sin())
        x = self.decoder(self._frames.embeds(inputs), self._cache, where)
        return self._frames.complete(inputs, self._model.norm(x))
