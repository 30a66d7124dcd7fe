"""Completing a codec frame, group after group, from a backbone's hidden state and the frame's first code."""

from __future__ import annotations

import abc
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.cuda_graph import GraphedOnCuda
from omni_python.layers.decoder import Decoder
from omni_python.layers.fused_decoder import MAX_ROWS
from omni_python.layers.kv_cache import PAGE_TOKENS, AttentionPlan, KVRow, PagedKVCache

Completion = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""What `FrameCompleter.forward` does."""


class FrameCompleter(nn.Module, abc.ABC):
    """Base of the secondary heads: a decoder whose sequence is the hidden state, then the frame's codes.

    Every row starts anew with every frame, and all rows go through the same positions, so one plan serves them all.
    """

    def __init__(self, model: Decoder, groups: int) -> None:
        super().__init__()
        self.model = model
        self.groups = groups
        self.fused: Completion | None = None
        """Completes frames of at most MAX_ROWS rows in place of this module's own plain operations, where it is set."""
        self._prepared: dict[int, tuple[PagedKVCache, list[AttentionPlan]]] = {}
        self._graphed = GraphedOnCuda(self._complete)

    @abc.abstractmethod
    def embed(self, group: int, codes: torch.Tensor) -> torch.Tensor:
        """The embeddings [B, H] of `codes` [B] of a group after the first, as the decoder's next input."""

    @abc.abstractmethod
    def logits(self, group: int, hidden: torch.Tensor) -> torch.Tensor:
        """The logits [B, V] of a group after the first, of the decoder's normed output [B, H]."""

    @abc.abstractmethod
    def no_sampling(self, rows: int) -> tuple[torch.Tensor, ...]:
        """`sampling` of `rows` rows that are not there: zeros, on the model's device."""

    @abc.abstractmethod
    def choose(self, group: int, logits: torch.Tensor, sampling: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Each row's code [B] of a group, by float32 `logits` [B, V]. Captured on a GPU, so nothing is looked at on the
        host; rows that pad a batch have zeros in `sampling`."""

    def prepare(self, max_rows: int) -> None:
        """Capture, on a GPU, what `forward` does for each number of rows up to `max_rows`."""
        weight = self.model.norm.weight
        rows = 1
        while weight.is_cuda and rows < 2 * max_rows:
            zeros = weight.new_zeros(rows, len(weight))
            self(zeros, zeros, *self.no_sampling(rows))
            rows *= 2

    def forward(
        self, hidden: torch.Tensor, first: torch.Tensor, *sampling: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Complete one frame of each row.

        `hidden` [B, H] is the backbone's normed output that gave the first code, `first` [B, H] that code's embedding;
        `sampling` are tensors [B, ...] for `choose`. Returns the other groups' codes [B, groups - 1] and the sum of
        their embeddings [B, H].
        """
        rows = len(hidden)
        inputs = (hidden, first, *sampling)
        if hidden.is_cuda:  # few sizes, so few graphs
            padding = (1 << (rows - 1).bit_length()) - rows
            inputs = tuple(F.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, padding)) for tensor in inputs)
        codes, total = self._graphed(*inputs)
        return codes[:rows], total[:rows]

    def _complete(
        self, hidden: torch.Tensor, first: torch.Tensor, *sampling: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = len(hidden)
        if self.fused is not None and rows <= MAX_ROWS:
            return self.fused(hidden, first, *sampling)
        cache, plans = self._prepare(rows, hidden.device)
        x = torch.stack((hidden, first), dim=1).flatten(0, 1)
        codes, total = [], torch.zeros_like(hidden)
        for step, plan in enumerate(plans):
            group = step + 1
            start = 0 if step == 0 else group
            positions = torch.arange(start, group + 1, device=x.device).repeat(rows).expand(3, -1)
            out, _ = self.model(x, positions, cache, plan)
            logits = self.logits(group, out.view(rows, -1, out.shape[-1])[:, -1]).float()
            code = self.choose(group, logits, sampling)
            x = self.embed(group, code)
            codes.append(code)
            total = total + x
        return torch.stack(codes, dim=1), total

    def _prepare(self, rows: int, device: torch.device) -> tuple[PagedKVCache, list[AttentionPlan]]:
        """A cache with pages for `rows` rows, and the plan of each step."""
        if rows not in self._prepared:
            pages = -(-(self.groups + 1) // PAGE_TOKENS)
            owned = [range(row * pages, (row + 1) * pages) for row in range(rows)]
            plans = [
                AttentionPlan.build([KVRow(own, 0, 2) if group == 1 else KVRow(own, group, 1) for own in owned], device)
                for group in range(1, self.groups)
            ]
            self._prepared[rows] = self.model.new_cache(rows * pages), plans
        return self._prepared[rows]
