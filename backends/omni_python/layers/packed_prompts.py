"""Whole prompts, packed into a fixed number of rows, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from omni_python.layers.cuda_graph import captured
from omni_python.layers.decoder import Deepstack

PROMPT_SIZES = (32, 64, 128, 256, 512)
"""Rows for which a graph is captured."""


@dataclass(frozen=True)
class PackedRows:
    """Prompts one after the other, and rows of zeros that pad them.

    `embeds` [rows, H]; `positions` float32 [3, rows]. Row i attends to the rows from `first`[i] (int32 [rows]), where
    its prompt begins, to itself; its key and value go to `slots`[i] (int64 [rows]) of the cache. `deepstack`
    [layers, rows, H] is added to the outputs of the first layers. A row that pads is a prompt of its own.
    """

    embeds: torch.Tensor
    positions: torch.Tensor
    first: torch.Tensor
    slots: torch.Tensor
    deepstack: torch.Tensor


Computation = Callable[[PackedRows], tuple[torch.Tensor, torch.Tensor]]
"""The normed output and the tapped hidden state [rows, H] (see `Decoder.forward`). It may write over `embeds`, and must
not look at values on the host."""


class PackedPrompts:
    """`compute`, captured for each of `sizes` rows; on the CPU called as it is."""

    def __init__(
        self, compute: Computation, like: torch.Tensor, spare_slot: int, deepstack_layers: int, sizes: Sequence[int]
    ) -> None:
        """Embeddings are rows of the shape, dtype and device of those of `like` [n, H].

        `spare_slot` of the cache is no request's: there go the keys and values of rows that pad.
        """
        self._compute = compute
        self._like = like
        self._spare_slot = spare_slot
        self._deepstack_layers = deepstack_layers
        self._sizes = sorted(sizes)
        self._captured: dict[int, _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle() if like.is_cuda else None
        self._stream = torch.cuda.Stream(like.device) if like.is_cuda else None

    @property
    def most(self) -> int:
        """Tokens that can go through together."""
        return self._sizes[-1]

    def prepare(self) -> None:
        """Compile and capture every size, which may take minutes the first time."""
        for size in reversed(self._sizes):  # the largest first: the others then find room in its memory
            self._of_size(size)

    def __call__(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        starts: Sequence[int],
        slots: torch.Tensor,
        deepstack: Deepstack | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`embeds` [n, H], `positions` [3, n] and `slots` [n] of prompts that begin at `starts`; n at most `most`.

        Returns the normed output and the tapped hidden state, each [n, H]; the next call overwrites them.
        """
        tokens = len(embeds)
        kept = self._of_size(next(size for size in self._sizes if size >= tokens))
        kept.fill(embeds, positions, starts, slots, deepstack)
        if kept.graph is None:
            hidden, tapped = self._compute(kept.rows)
        else:
            kept.graph.replay()
            assert kept.outputs is not None
            hidden, tapped = kept.outputs
        return hidden[:tokens], tapped[:tokens]

    def _of_size(self, size: int) -> _Captured:
        if size not in self._captured:
            self._captured[size] = self._capture(size)
        return self._captured[size]

    def _capture(self, size: int) -> _Captured:
        kept = _Captured(size, self._like, self._spare_slot, self._deepstack_layers)
        if self._stream is not None:
            kept.graph, kept.outputs = captured(lambda: self._compute(kept.rows), self._stream, self._pool)
        return kept


class _Captured:
    """What is kept for one number of rows."""

    def __init__(self, size: int, like: torch.Tensor, spare_slot: int, deepstack_layers: int) -> None:
        device = like.device
        hidden = like.shape[1]
        self._spare_slot = spare_slot
        self._size = size
        self._alone = torch.arange(size, dtype=torch.int32, device=device)
        self._has_deepstack = False
        self.rows = PackedRows(
            embeds=like.new_zeros(size, hidden),
            positions=torch.zeros(3, size, device=device),
            first=self._alone.clone(),
            slots=torch.full((size,), spare_slot, device=device),
            deepstack=like.new_zeros(deepstack_layers, size, hidden),
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.outputs: tuple[torch.Tensor, torch.Tensor] | None = None

    def fill(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        starts: Sequence[int],
        slots: torch.Tensor,
        deepstack: Deepstack | None,
    ) -> None:
        rows, tokens = self.rows, len(embeds)
        lengths = np.diff([*starts, tokens])
        first = torch.from_numpy(np.repeat(np.asarray(starts, np.int32), lengths))
        rows.embeds[:tokens] = embeds
        rows.embeds[tokens:] = 0  # and so they stay in every layer, and change no other row
        rows.positions[:, :tokens] = positions
        rows.first[:tokens] = first.to(rows.first.device)
        rows.first[tokens:] = self._alone[tokens:]
        rows.slots[:tokens] = slots
        rows.slots[tokens:] = self._spare_slot
        if self._has_deepstack:
            rows.deepstack.zero_()
        self._has_deepstack = deepstack is not None
        if deepstack is not None:
            for layer, features in zip(rows.deepstack, deepstack.layers, strict=True):
                layer.index_copy_(0, deepstack.tokens, features)
