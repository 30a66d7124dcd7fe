"""The trunk's decode step, from the last frames' codes to logits, in one captured graph."""

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
from omni_python.models.fish_s2_pro.dual_ar import DualAR

_SPLITS = 16
_SLOT, _PAST = range(2)


class TrunkDecode:
    """Requests are known by their slots in `tables`."""

    def __init__(self, model: DualAR, cache: PagedKVCache, max_running: int) -> None:
        """`cache` has a last page that no request owns, for the rows that pad a batch."""
        device = model.speak.weight.device
        self._model = model
        self.decoder = FusedDecoder(model.trunk, MAX_ROWS, _SPLITS)
        self._cache = cache
        self.tables = PageTables(cache, max_running, device)
        self._codes = torch.zeros(MAX_ROWS, model.config.books, dtype=torch.int64, device=device)
        padding = np.array([max_running, 0], np.int32)
        self._step = CapturedStep(self._compute, padding, min(MAX_ROWS, max_running), device)

    def prepare(self) -> None:
        self._step.prepare()

    def step(self, slots: Sequence[int], past: Sequence[int], codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The trunk's normed output [rows, H] and float32 logits [rows, codes + 1] after frames `codes` int64
        [rows, books], which have `past` cached tokens before them; at most MAX_ROWS rows.

        The next call overwrites them.
        """
        self._codes[: len(codes)] = codes
        output = self._step.run(np.array([slots, past], np.int32))
        hidden = self._model.config.trunk.hidden
        return output[:, :hidden].to(self._model.speak.weight.dtype), output[:, hidden:]

    def _compute(self, inputs: torch.Tensor) -> torch.Tensor:
        model = self._model
        angles = model.trunk.rotary.angles(inputs[_PAST].expand(3, -1))
        where = Where(self.tables.tensor, inputs[_SLOT], inputs[_PAST], angles.cos(), angles.sin())
        x = self.decoder(model.embed_frames(self._codes[: inputs.shape[1]]), self._cache, where)
        hidden = model.trunk.norm(x)
        # One tensor, as a captured step gives one; a bfloat16's value is kept by a float32.
        return torch.cat((hidden.float(), linear(hidden, model.speak.weight, dtype=torch.float32)), dim=1)
