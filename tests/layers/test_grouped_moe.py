"""The grouped router and the experts behind it, against loops over tokens; and heads that are turned in part."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from omni_python.layers.grouped_moe import GroupedMoE, GroupedRouting
from omni_python.layers.partial_rotary import PartialRotary, reordered
from omni_python.layers.rope import rotate

ROUTING = GroupedRouting(experts=16, experts_per_token=3, groups=4, groups_per_token=2, scale=2.5)


def plain(moe: GroupedMoE, x: torch.Tensor) -> torch.Tensor:
    """One token [hidden]."""
    scores = (moe.gate.weight @ x).sigmoid()
    biased = scores + moe.gate.expert_bias
    quality = {group: float(biased[group * 4 : group * 4 + 4].sort().values[-2:].sum()) for group in range(4)}
    groups = sorted(quality, key=lambda group: -quality[group])[:2]
    chosen = sorted((e for e in range(16) if e // 4 in groups), key=lambda e: -float(biased[e]))[:3]
    out = torch.zeros_like(x)
    for expert in chosen:
        gate, up = (moe.experts.gate_up_proj[expert] @ x).chunk(2)
        share = scores[expert] / sum(scores[e] for e in chosen) * 2.5
        out = out + share * (moe.experts.down_proj[expert] @ (F.silu(gate) * up))
    return out if moe.shared_experts is None else out + moe.shared_experts(x[None])[0]


@pytest.mark.parametrize("shared", [0, 48])
@torch.no_grad()
def test_experts_are_chosen_within_the_best_groups(shared: int) -> None:
    torch.manual_seed(shared)
    moe = GroupedMoE(32, 16, ROUTING, shared)
    for weight in moe.parameters():
        weight.normal_(0, 0.3)
    x = torch.randn(40, 32)
    expected = torch.stack([plain(moe, row) for row in x])
    torch.testing.assert_close(moe(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(moe(x[:7]), moe(x)[:7], atol=1e-5, rtol=1e-5)
    # All sixteen at once would be chosen otherwise for some tokens.
    freely = (x @ moe.gate.weight.T).sigmoid().add(moe.gate.expert_bias).topk(3).indices.sort().values
    assert not torch.equal(moe.gate(x)[1].sort().values, freely)


def test_a_part_of_each_head_is_turned() -> None:
    heads, dim, turned, theta = 3, 16, 8, 100.0
    query, key = torch.randn(2, 9, heads, dim)
    places = torch.arange(9)
    angles = places[:, None] * theta ** -(torch.arange(0, turned, 2) / turned)

    def published(x: torch.Tensor) -> torch.Tensor:
        first, second, rest = x[..., :4], x[..., 4:8], x[..., 8:]
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)

    cos_sin = PartialRotary(dim, turned, theta)(places.expand(3, -1), torch.float32)
    ours = [rotate(reordered(x.flatten(1).T, dim, turned).T.unflatten(1, (heads, dim)), *cos_sin) for x in (query, key)]
    expected = torch.einsum("qhd,khd->hqk", published(query), published(key))
    torch.testing.assert_close(torch.einsum("qhd,khd->hqk", *ours), expected, atol=1e-5, rtol=1e-5)
