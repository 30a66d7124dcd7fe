"""Gated feed-forward layers: dense, and a sparse mixture of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class GatedMLP(nn.Module):
    """silu(gate(x)) * up(x), projected down."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., hidden] -> the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """Gated MLPs: `gate_up_proj` [experts, 2 * intermediate, hidden], `down_proj` [experts, hidden, intermediate]."""

    def __init__(self, experts: int, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * intermediate, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, intermediate))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """`x` [n, hidden], sorted by expert; expert e has the rows from `ends`[e - 1] to `ends`[e] (int32)."""
        gate, up = F.grouped_mm(x, self.gate_up_proj.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        return F.grouped_mm(F.silu(gate) * up, self.down_proj.transpose(1, 2), offs=ends)

    def mixed(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """`x` [tokens, hidden] through each token's experts `chosen` int64 [tokens, k], weighted by `weights`."""
        top_k = chosen.shape[1]
        expert, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(expert, torch.arange(len(self.down_proj), device=x.device), right=True)
        sorted_out = self(x[order // top_k], ends.to(torch.int32))
        # Put back in each token's own order and summed there: the result does not depend on who else is in the batch.
        out = torch.empty_like(sorted_out)
        out[order] = sorted_out
        return (out.view(len(x), top_k, -1) * weights[..., None].to(x.dtype)).sum(dim=1)


class SparseMoE(nn.Module):
    """Each token goes through its `top_k` experts, weighted by the router's softmax (in float32).

    With `shared_intermediate` every token also goes through one more expert, weighted by its own sigmoid gate.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        experts: int,
        top_k: int,
        normalise: bool,
        shared_intermediate: int = 0,
    ) -> None:
        super().__init__()
        self.top_k = top_k
        self.normalise = normalise
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.experts = Experts(experts, hidden, intermediate)
        self.shared_expert = GatedMLP(hidden, shared_intermediate) if shared_intermediate else None
        self.shared_expert_gate = nn.Linear(hidden, 1, bias=False) if shared_intermediate else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [tokens, hidden] -> [tokens, hidden]."""
        weights, chosen = F.softmax(self.gate(x), dim=-1, dtype=torch.float32).topk(self.top_k, dim=-1)
        if self.normalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        out = self.experts.mixed(x, weights, chosen)
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            out = out + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return out
