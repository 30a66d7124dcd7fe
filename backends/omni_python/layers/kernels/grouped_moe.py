"""A sparse mixture of experts over many rows: every expert's weights are read once, for the rows that chose it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_python.layers.kernels.launch import OVERLAPPED, divisor, options
from omni_python.layers.kernels.linear import linear
from omni_python.layers.kernels.moe import MoEWeights, chosen_and_shares

_ROUTED = 4
"""Rows that one program routes."""


@dataclass(frozen=True)
class Tiles:
    """Of one program: outputs, inputs read at a time, and how many such reads are under way; warps."""

    outputs: int = 128
    inputs: int = 128
    stages: int = 3
    warps: int = 4


GATE_UP = Tiles()
DOWN = Tiles(warps=8)
"""The fastest of 16 tried on an H100 at 64 rows, by up to 7 %; at 512 rows all are within 5 %."""


@dataclass(frozen=True)
class Groups:
    """Who chose which expert. A choice is a number row * choices + place, `choices` being how many each row makes.

    `members` int32 [experts, rows]: of expert e the first `counts`[e] (int32 [experts]) are its choices, in order of
    the rows. `shares` float32 [rows, experts] is how much each row takes from each.
    """

    members: torch.Tensor
    counts: torch.Tensor
    shares: torch.Tensor
    choices: int


def mix_grouped(x: torch.Tensor, eps: float, weights: MoEWeights) -> torch.Tensor:
    """Add the experts' answers to the normed rows of `x` [rows, H] to `x`, in place.

    The norm's gain is in the router's and the experts' weights already.
    """
    groups = group(linear(x, weights.router, normed=True, eps=eps, dtype=torch.float32), weights)
    rows, hidden = x.shape
    experts, _, size = weights.down.shape
    block_m = 16 if rows <= 32 else 32 if rows <= 128 else 64
    common = (groups.members, groups.counts, groups.shares, rows, eps, experts, groups.choices)
    activated = x.new_empty(rows * groups.choices, size)
    parts = torch.empty(rows * groups.choices, hidden, dtype=torch.float32, device=x.device)
    for tiles, source, weight, out in (
        (GATE_UP, x, weights.gate_up, activated),
        (DOWN, activated, weights.down, parts),
    ):
        gated = out is activated
        in_size, out_size = source.shape[1], out.shape[1]
        block_n, block_k = divisor(out_size, tiles.outputs), divisor(in_size, tiles.inputs)
        warps = 8 if block_m == 64 else tiles.warps
        _through_experts[(out_size // block_n, experts)](
            source, weight, out, *common,
            in_size, out_size, gated, block_m, block_n, block_k, OVERLAPPED, **options(warps, tiles.stages),
        )  # fmt: skip
    block_n = divisor(hidden, 256)
    _add_choices[(rows, hidden // block_n)](
        parts, x, hidden, groups.choices, triton.next_power_of_2(groups.choices), block_n, OVERLAPPED, **options(1)
    )
    return x


def group(logits: torch.Tensor, weights: MoEWeights) -> Groups:
    """From the router's float32 `logits` [rows, experts (+ 1)]."""
    rows, width = logits.shape
    experts, always = len(weights.gate_up), weights.always
    routed = experts - always
    choices = weights.top_k + always
    shares = torch.empty(rows, experts, dtype=torch.float32, device=logits.device)
    places = torch.empty(rows, experts, dtype=torch.int32, device=logits.device)
    members = torch.empty(experts, rows, dtype=torch.int32, device=logits.device)
    counts = torch.empty(experts, dtype=torch.int32, device=logits.device)
    _choose[(triton.cdiv(rows, _ROUTED),)](
        logits, shares, places, rows, width, routed, weights.top_k, always, weights.normalise,
        _ROUTED, triton.next_power_of_2(routed), triton.next_power_of_2(max(1, always)), OVERLAPPED, **options(4),
    )  # fmt: skip
    _collect[(experts,)](
        places, members, counts, rows, experts, choices, max(16, triton.next_power_of_2(rows)), OVERLAPPED, **options(1)
    )
    return Groups(members, counts, shares, choices)


@triton.jit
def _choose(
    logits_ptr,
    shares_ptr,
    places_ptr,
    rows,
    width,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    ALWAYS: tl.constexpr,
    NORMALISE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_A: tl.constexpr,
    PDL: tl.constexpr,
):
    # `places` get the place of each chosen expert among those of its row, and -1 where it is not chosen.
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    e = tl.arange(0, BLOCK_E)
    there = (m < rows)[:, None] & (e < EXPERTS)[None, :]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    logits = tl.load(logits_ptr + m[:, None] * width + e[None, :], mask=there, other=-float("inf"))
    chosen, share = chosen_and_shares(logits, there, TOP_K, NORMALISE)
    place = tl.where(chosen, tl.cumsum(chosen.to(tl.int32), axis=1) - 1, -1)
    at = m[:, None] * (EXPERTS + ALWAYS) + e[None, :]
    tl.store(shares_ptr + at, share, mask=there)
    tl.store(places_ptr + at, place, mask=there)
    if ALWAYS > 0:
        a = tl.arange(0, BLOCK_A)
        gate = tl.load(logits_ptr + m * width + EXPERTS, mask=m < rows, other=0.0)
        gate = 1.0 / (1.0 + tl.exp(-gate))
        at = m[:, None] * (EXPERTS + ALWAYS) + EXPERTS + a[None, :]
        there = (m < rows)[:, None] & (a < ALWAYS)[None, :]
        tl.store(shares_ptr + at, gate[:, None] + tl.zeros([BLOCK_M, BLOCK_A], tl.float32), mask=there)
        tl.store(places_ptr + at, TOP_K + a[None, :] + tl.zeros([BLOCK_M, BLOCK_A], tl.int32), mask=there)


@triton.jit
def _collect(
    places_ptr,
    members_ptr,
    counts_ptr,
    rows,
    EXPERTS: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PDL: tl.constexpr,
):
    expert = tl.program_id(0)
    m = tl.arange(0, BLOCK_M)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    place = tl.load(places_ptr + m * EXPERTS + expert, mask=m < rows, other=-1)
    chosen = place >= 0
    rank = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(members_ptr + expert * rows + rank, m * CHOICES + place, mask=chosen)
    tl.store(counts_ptr + expert, tl.sum(chosen.to(tl.int32), axis=0))


@triton.jit
def _through_experts(
    x_ptr,
    weight_ptr,
    out_ptr,
    members_ptr,
    counts_ptr,
    shares_ptr,
    rows,
    eps,
    EXPERTS: tl.constexpr,
    CHOICES: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    # With GATED, rows of x are normed, and the output is silu(gate) * up * share, one row a choice; else both are rows
    # of choices.
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    expert = tl.program_id(1)
    ks = tl.arange(0, BLOCK_K)
    base = weight_ptr + expert.to(tl.int64) * ((2 if GATED else 1) * OUT * IN) + n[:, None] * IN + ks[None, :]
    if PDL:
        gdc_wait()
    count = tl.load(counts_ptr + expert)
    for begin in range(0, count, BLOCK_M):
        member = begin + tl.arange(0, BLOCK_M)
        there = member < count
        choice = tl.load(members_ptr + expert * rows + member, mask=there, other=0)
        source = choice // CHOICES if GATED else choice
        x_at = x_ptr + source[:, None] * IN + ks[None, :]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        squares = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
        for k in range(0, IN, BLOCK_K):
            weight = tl.load(base + k)
            x = tl.load(x_at + k, mask=there[:, None], other=0.0)
            acc = tl.dot(x, tl.trans(weight), acc)
            if GATED:
                up_weight = tl.load(base + OUT * IN + k)
                up = tl.dot(x, tl.trans(up_weight), up)
                wide = x.to(tl.float32)
                squares += wide * wide
        if GATED:
            share = tl.load(shares_ptr + source * EXPERTS + expert, mask=there, other=0.0)
            scale = tl.rsqrt(tl.sum(squares, axis=1) / IN + eps)[:, None]
            acc *= scale
            up *= scale
            acc = acc / (1.0 + tl.exp(-acc)) * up * share[:, None]
        place = out_ptr + choice[:, None] * OUT + n[None, :]
        tl.store(place, acc.to(out_ptr.dtype.element_ty), mask=there[:, None])
    if PDL:
        gdc_launch_dependents()


@triton.jit
def _add_choices(
    parts_ptr,
    x_ptr,
    HIDDEN: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    choice = tl.arange(0, BLOCK_C)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    at = (row * CHOICES + choice)[:, None] * HIDDEN + n[None, :]
    parts = tl.load(parts_ptr + at, mask=(choice < CHOICES)[:, None], other=0.0)
    place = x_ptr + row * HIDDEN + n
    y = tl.sum(parts, axis=0) + tl.load(place).to(tl.float32)
    tl.store(place, y.to(x_ptr.dtype.element_ty))
