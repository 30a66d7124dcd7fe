"""A sparse mixture of experts over few rows, which reads the weights of the chosen experts alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_python.layers.kernels.launch import OVERLAPPED, divisor, options
from omni_python.layers.kernels.linear import linear

_SPLITS = 16
"""Among how many programs the active experts of one tile of the output are spread where there are several rows."""


@dataclass(frozen=True)
class MoEWeights:
    """`router` [experts + 1 if `always` else experts, H]; `gate_up` [experts + always, 2 * I, H]; `down` [..., H, I].

    The last `always` experts are the pieces of a shared expert, cut into experts of I: every row goes through them,
    with the sigmoid of the router's last output as their weight.
    """

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    top_k: int
    always: int
    normalise: bool


@dataclass(frozen=True)
class Routing:
    """`active` int32 [at most as many as can be] are the experts that some row chose, `count` [1] how many of them;
    `shares` float32 [rows, experts + always] how much each row takes from each, 0 where it did not choose it."""

    active: torch.Tensor
    count: torch.Tensor
    shares: torch.Tensor


def mix(x: torch.Tensor, eps: float, weights: MoEWeights) -> torch.Tensor:
    """Add the experts' answers to the normed rows of `x` [rows, H] to `x`, in place.

    The norm's gain is in the router's and the experts' weights already.
    """
    routing = route(linear(x, weights.router, normed=True, eps=eps, dtype=torch.float32), weights)
    rows, hidden = x.shape
    size = weights.down.shape[2]
    slots = len(routing.active)
    padded = max(16, triton.next_power_of_2(rows)) if rows > 1 else 1
    activated = x.new_empty(slots, padded, size)
    experts = len(weights.gate_up)
    if rows == 1:
        block_k = triton.next_power_of_2(hidden)
        block_n = min(divisor(size, 16), max(1, 8192 // block_k))
        _gate_up_one[(slots, size // block_n)](
            x, weights.gate_up, routing.active, routing.shares, activated, eps,
            hidden, size, block_n, block_k, OVERLAPPED, **options(4),
        )  # fmt: skip
        block_k = triton.next_power_of_2(slots * size)
        block_n = max(1, 16384 // block_k)
        _down_one[(triton.cdiv(hidden, block_n),)](
            activated, weights.down, routing.active, x,
            hidden, size, slots, block_n, block_k, OVERLAPPED, **options(8 if block_k > 4096 else 4),
        )  # fmt: skip
        return x
    block_n, block_k = divisor(size, 64), divisor(hidden, 128)
    _gate_up_many[(slots, size // block_n)](
        x, weights.gate_up, routing.active, routing.count, routing.shares, activated, rows, eps, experts,
        hidden, size, padded, block_n, block_k, OVERLAPPED, **options(4, 4),
    )  # fmt: skip
    parts = torch.empty(_SPLITS, rows, hidden, dtype=torch.float32, device=x.device)
    block_n, block_k = divisor(hidden, 64), divisor(size, 128)
    _down_many[(hidden // block_n, _SPLITS)](
        activated, weights.down, routing.active, routing.count, parts, rows,
        hidden, size, padded, _SPLITS, block_n, block_k, OVERLAPPED, **options(4, 4),
    )  # fmt: skip
    _add_parts[(rows, hidden // block_n)](parts, x, rows, hidden, _SPLITS, block_n, OVERLAPPED, **options(1))
    return x


def route(logits: torch.Tensor, weights: MoEWeights) -> Routing:
    """From the router's float32 `logits` [rows, experts (+ 1)]."""
    rows, width = logits.shape
    experts = len(weights.gate_up) - weights.always
    room = min(experts, rows * weights.top_k) + weights.always
    active = torch.empty(room, dtype=torch.int32, device=logits.device)
    count = torch.empty(1, dtype=torch.int32, device=logits.device)
    shares = torch.empty(rows, experts + weights.always, dtype=torch.float32, device=logits.device)
    _route[(1,)](
        logits, active, count, shares, rows, width, experts, weights.top_k, weights.always, weights.normalise,
        triton.next_power_of_2(rows), triton.next_power_of_2(experts),
        triton.next_power_of_2(max(1, weights.always)), OVERLAPPED, **options(1 if rows == 1 else 4),
    )  # fmt: skip
    return Routing(active, count, shares)


@triton.jit
def chosen_and_shares(logits, there, TOP_K: tl.constexpr, NORMALISE: tl.constexpr):
    """Of rows of logits (-inf where not `there`): whether each expert is among the TOP_K largest, and its share."""
    e = tl.arange(0, logits.shape[1])
    left = logits
    chosen = tl.zeros([logits.shape[0], logits.shape[1]], tl.int1)
    for _ in tl.static_range(TOP_K):
        best = tl.argmax(left, axis=1)
        hit = e[None, :] == best[:, None]
        chosen = chosen | hit
        left = tl.where(hit, -float("inf"), left)
    chosen = chosen & there
    top = tl.max(tl.where(there, logits, -1.0e30), axis=1)
    likelihood = tl.where(there, tl.exp(logits - top[:, None]), 0.0)
    share = tl.where(chosen, likelihood, 0.0)
    whole = tl.sum(share if NORMALISE else likelihood, axis=1)
    return chosen, share / tl.where(whole == 0.0, 1.0, whole)[:, None]


@triton.jit
def _route(
    logits_ptr,
    active_ptr,
    count_ptr,
    shares_ptr,
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
    m = tl.arange(0, BLOCK_M)
    e = tl.arange(0, BLOCK_E)
    there = (m < rows)[:, None] & (e < EXPERTS)[None, :]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    logits = tl.load(logits_ptr + m[:, None] * width + e[None, :], mask=there, other=-float("inf"))
    chosen, share = chosen_and_shares(logits, there, TOP_K, NORMALISE)
    tl.store(shares_ptr + m[:, None] * (EXPERTS + ALWAYS) + e[None, :], share, mask=there)
    anyone = tl.max(chosen.to(tl.int32), axis=0)
    tl.store(active_ptr + tl.cumsum(anyone, axis=0) - 1, e, mask=anyone > 0)
    count = tl.sum(anyone, axis=0)
    if ALWAYS > 0:
        a = tl.arange(0, BLOCK_A)
        gate = tl.load(logits_ptr + m * width + EXPERTS, mask=m < rows, other=0.0)
        gate = 1.0 / (1.0 + tl.exp(-gate))
        tl.store(
            shares_ptr + m[:, None] * (EXPERTS + ALWAYS) + EXPERTS + a[None, :],
            gate[:, None] + tl.zeros([BLOCK_M, BLOCK_A], tl.float32),
            mask=(m < rows)[:, None] & (a < ALWAYS)[None, :],
        )
        tl.store(active_ptr + count + a, EXPERTS + a, mask=a < ALWAYS)
    tl.store(count_ptr, count + ALWAYS)


@triton.jit
def _gate_up_one(
    x_ptr,
    weight_ptr,
    active_ptr,
    shares_ptr,
    out_ptr,
    eps,
    HIDDEN: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    slot = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    k_there = k < HIDDEN
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.load(active_ptr + slot)
    at = weight_ptr + expert.to(tl.int64) * (2 * SIZE * HIDDEN) + n[:, None] * HIDDEN + k[None, :]
    gate_weight = tl.load(at, mask=k_there[None, :], other=0.0)
    up_weight = tl.load(at + SIZE * HIDDEN, mask=k_there[None, :], other=0.0)
    x = tl.load(x_ptr + k, mask=k_there, other=0.0).to(tl.float32)
    share = tl.load(shares_ptr + expert)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)
    gate = tl.sum(gate_weight.to(tl.float32) * x[None, :], axis=1) * scale
    up = tl.sum(up_weight.to(tl.float32) * x[None, :], axis=1) * scale
    y = gate / (1.0 + tl.exp(-gate)) * up * share
    tl.store(out_ptr + slot * SIZE + n, y.to(out_ptr.dtype.element_ty))


@triton.jit
def _down_one(
    x_ptr,
    weight_ptr,
    active_ptr,
    out_ptr,
    HIDDEN: tl.constexpr,
    SIZE: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    there = n < HIDDEN
    k = tl.arange(0, BLOCK_K)
    k_there = k < SLOTS * SIZE
    # Which experts was written two kernels ago, so it can be read, and their weights, while the one before still runs.
    expert = tl.load(active_ptr + k // SIZE, mask=k_there, other=0).to(tl.int64)
    at = weight_ptr + expert[None, :] * (HIDDEN * SIZE) + n[:, None] * SIZE + (k % SIZE)[None, :]
    weight = tl.load(at, mask=there[:, None] & k_there[None, :], other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(x_ptr + k, mask=k_there, other=0.0).to(tl.float32)
    y = tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
    y += tl.load(out_ptr + n, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, y.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def _gate_up_many(
    x_ptr,
    weight_ptr,
    active_ptr,
    count_ptr,
    shares_ptr,
    out_ptr,
    rows,
    eps,
    all_experts,
    HIDDEN: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    slot = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    ks = tl.arange(0, BLOCK_K)
    row_there = m < rows
    if PDL:
        gdc_wait()
    if slot < tl.load(count_ptr):
        expert = tl.load(active_ptr + slot)
        share = tl.load(shares_ptr + m * all_experts + expert, mask=row_there, other=0.0)
        base = weight_ptr + expert.to(tl.int64) * (2 * SIZE * HIDDEN)
        gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        squares = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
        for k0 in range(0, HIDDEN, BLOCK_K):
            k = k0 + ks
            at = base + n[:, None] * HIDDEN + k[None, :]
            gate_weight = tl.load(at)
            up_weight = tl.load(at + SIZE * HIDDEN)
            x = tl.load(x_ptr + m[:, None] * HIDDEN + k[None, :], mask=row_there[:, None], other=0.0)
            wide = x.to(tl.float32)
            squares += wide * wide
            gate = tl.dot(x, tl.trans(gate_weight), gate)
            up = tl.dot(x, tl.trans(up_weight), up)
        if PDL:  # not sooner: what waits takes shared memory from what runs
            gdc_launch_dependents()
        scale = tl.rsqrt(tl.sum(squares, axis=1) / HIDDEN + eps)[:, None]
        gate *= scale
        up *= scale
        y = gate / (1.0 + tl.exp(-gate)) * up * share[:, None]
        # A row that did not choose the expert gets nothing of it, not even what is no number.
        y = tl.where(share[:, None] == 0.0, 0.0, y)
        tl.store(out_ptr + (slot * BLOCK_M + m)[:, None] * SIZE + n[None, :], y.to(out_ptr.dtype.element_ty))


@triton.jit
def _down_many(
    x_ptr,
    weight_ptr,
    active_ptr,
    count_ptr,
    parts_ptr,
    rows,
    HIDDEN: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    PIECES: tl.constexpr = SIZE // BLOCK_K
    if PDL:
        gdc_wait()
    mine = tl.maximum(0, tl.cdiv(tl.load(count_ptr) - split, SPLITS))
    for piece in range(mine * PIECES):
        slot = split + piece // PIECES * SPLITS
        k = piece % PIECES * BLOCK_K + ks
        expert = tl.load(active_ptr + slot).to(tl.int64)
        weight = tl.load(weight_ptr + expert * (HIDDEN * SIZE) + n[:, None] * SIZE + k[None, :])
        x = tl.load(x_ptr + (slot * BLOCK_M + m)[:, None] * SIZE + k[None, :])
        acc = tl.dot(x, tl.trans(weight), acc)
    if PDL:
        gdc_launch_dependents()
    place = parts_ptr + (split * rows + m)[:, None] * HIDDEN + n[None, :]
    tl.store(place, acc, mask=(m < rows)[:, None] & (n < HIDDEN)[None, :])


@triton.jit
def _add_parts(
    parts_ptr, x_ptr, rows, HIDDEN: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    splits = tl.arange(0, SPLITS)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    parts = tl.load(parts_ptr + (splits * rows + row)[:, None] * HIDDEN + n[None, :])
    place = x_ptr + row * HIDDEN + n
    y = tl.sum(parts, axis=0) + tl.load(place).to(tl.float32)
    tl.store(place, y.to(x_ptr.dtype.element_ty))
