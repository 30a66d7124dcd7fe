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


class GroupedRouter(nn.Module):
    """Chooses experts by the sigmoid of its logits plus `expert_bias`, and weights them without that; a group is as
    good as its two best experts. Computes in float32."""

    def __init__(self, hidden: int, routing: GroupedRouting) -> None:
        super().__init__()
        self._routing = routing
        self.weight = nn.Parameter(torch.empty(routing.experts, hidden))
        self.expert_bias = nn.Parameter(torch.zeros(routing.experts))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`x` [tokens, hidden] -> weights float32 and experts int64, each [tokens, experts_per_token]."""
        routing = self._routing
        scores = F.linear(x.float(), self.weight.float()).sigmoid()
        grouped = (scores + self.expert_bias.float()).unflatten(-1, (routing.groups, -1))
        best = grouped.topk(2, dim=-1).values.sum(dim=-1).topk(routing.groups_per_token, dim=-1).indices
        left_out = torch.ones(grouped.shape[:2], dtype=torch.bool, device=x.device).scatter(1, best, False)
        candidates = grouped.masked_fill(left_out[..., None], -torch.inf).flatten(1)
        chosen = candidates.topk(routing.experts_per_token, dim=-1).indices
        weights = scores.gather(1, chosen)
        return weights * (routing.scale / weights.sum(dim=-1, keepdim=True)), chosen


class GroupedMoE(nn.Module):
    """Every token goes through the experts that the router `gate` chooses, and through the shared ones, where there are
    any."""

    def __init__(self, hidden: int, intermediate: int, routing: GroupedRouting, shared_intermediate: int = 0) -> None:
        super().__init__()
        self.gate = GroupedRouter(hidden, routing)
        self.experts = Experts(routing.experts, hidden, intermediate)
        self.shared_experts = GatedMLP(hidden, shared_intermediate) if shared_intermediate else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [tokens, hidden] -> [tokens, hidden]."""
        return self.mixed(x, *self.gate(x))

    def mixed(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """What comes of `x`, given a router's choice."""
        out = self.experts.mixed(x, weights, chosen)
        return out if self.shared_experts is None else out + self.shared_experts(x)
