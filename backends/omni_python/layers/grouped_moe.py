"""A sparse mixture of experts whose router first chooses groups of experts (DeepSeek-V3's, and BailingMoeV2's)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.mlp import Experts, GatedMLP


@dataclass(frozen=True)
class GroupedRouting:
    """`experts` in `groups` of equally many; a token goes to `experts_per_token` of the `groups_per_token` best groups,
    whose weights together are `scale`."""

    experts: int
    experts_per_token: int
    groups: int
    groups_per_token: int
    scale: float


class GroupedMoE(nn.Module):
    """Experts are chosen by the sigmoid of the router's logits plus `expert_bias`, and weighted without that; a group
    is as good as its two best experts. Every token also goes through the shared experts, where there are any.

    The router computes in float32.
    """

    def __init__(self, hidden: int, intermediate: int, routing: GroupedRouting, shared_intermediate: int = 0) -> None:
        super().__init__()
        self._routing = routing
        self.gate = nn.Linear(hidden, routing.experts, bias=False)
        self.expert_bias = nn.Parameter(torch.zeros(routing.experts))
        self.experts = Experts(routing.experts, hidden, intermediate)
        self.shared_experts = GatedMLP(hidden, shared_intermediate) if shared_intermediate else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [tokens, hidden] -> [tokens, hidden]."""
        out = self.experts.mixed(x, *self.route(x))
        return out if self.shared_experts is None else out + self.shared_experts(x)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights float32 and experts int64, each [tokens, experts_per_token]."""
        routing = self._routing
        scores = F.linear(x.float(), self.gate.weight.float()).sigmoid()
        grouped = (scores + self.expert_bias.float()).unflatten(-1, (routing.groups, -1))
        best = grouped.topk(2, dim=-1).values.sum(dim=-1).topk(routing.groups_per_token, dim=-1).indices
        left_out = torch.ones(grouped.shape[:2], dtype=torch.bool, device=x.device).scatter(1, best, False)
        candidates = grouped.masked_fill(left_out[..., None], -torch.inf).flatten(1)
        chosen = candidates.topk(routing.experts_per_token, dim=-1).indices
        weights = scores.gather(1, chosen)
        return weights * (routing.scale / weights.sum(dim=-1, keepdim=True)), chosen
