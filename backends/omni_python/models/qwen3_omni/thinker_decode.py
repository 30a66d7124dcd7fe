"""The thinker's decode step, from tokens to logits, in one captured graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from omni_python.layers.captured_step import CapturedStep
from omni_python.layers.fused_decoder import MAX_ROWS, FusedDecoder
from omni_python.layers.kernels.attention import Where
from omni_python.layers.kernels.linear import linear
from omni_python.layers.kv_cache import PagedKVCache
from omni_python.layers.page_tables import PageTables
from omni_python.models.qwen3_omni.thinker import Thinker

_SPLITS = 16
_SLOT, _PAST, _TOKEN, _POSITION = range(4)


class ThinkerDecode:
    """Requests are known by their slots in `tables`."""

    def __init__(self, thinker: Thinker, cache: PagedKVCache, max_running: int) -> None:
        """`cache` has a last page that no request owns, for the rows that pad a batch."""
        device = thinker.lm_head.weight.device
        self._thinker = thinker
        self.decoder = FusedDecoder(thinker.model, MAX_ROWS, _SPLITS)
        self._cache = cache
        self.tables = PageTables(cache, max_running, device)
        padding = np.array([max_running, 0, 0, 0], np.int32)
        self._step = CapturedStep(self._compute, padding, min(MAX_ROWS, max_running), device)

    def prepare(self) -> None:
        self._step.prepare()

    def step(
        self, slots: Sequence[int], past: Sequence[int], tokens: Sequence[int], positions: Sequence[float]
    ) -> torch.Tensor:
        """Float32 logits [rows, V] after `tokens`, which have `past` cached tokens before them; at most MAX_ROWS rows.

        The next call overwrites them.
        """
        columns = np.empty((4, len(slots)), np.int32)
        columns[_SLOT], columns[_PAST], columns[_TOKEN] = slots, past, tokens
        columns.view(np.float32)[_POSITION] = positions
        return self._step.run(columns)

    def _compute(self, inputs: torch.Tensor) -> torch.Tensor:
        model = self._thinker.model
        angles = model.rotary.angles(inputs.view(torch.float32)[_POSITION].expand(3, -1))
        where = Where(self.tables.tensor, inputs[_SLOT], inputs[_PAST], angles.cos(), angles.sin())
        x = self.decoder(model.embed_tokens(inputs[_TOKEN].long()), self._cache, where)
        return linear(model.norm(x), self._thinker.lm_head.weight, dtype=torch.float32)
