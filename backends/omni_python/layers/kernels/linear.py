"""Matrix products of few rows: an RMS norm before and a gated activation or a residual after, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_python.layers.kernels.launch import INTERPRETED, OVERLAPPED, divisor, options

_PROGRAMS = 128
"""About as many as there are multiprocessors; a narrower tile is taken before there are fewer."""
_FEW_ROWS = 4
"""Up to here rows are multiplied one by one by a tile of weights in registers, beyond on the matrix units."""
_MOST_ROWS = 32
"""Of one program; the weights are read once for so many."""
_TILE = 16384
"""Weights that one program of few rows holds: of those tried on an H100, all from 8192 on were within 7 %."""
_SLICES = 4
_STAGES = 5
"""Of the programs of many rows: 2 slices took 13 % to 35 % longer, 8 slices or 8 stages up to 4 %."""


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    normed: bool = False,
    eps: float = 1e-6,
    gated: bool = False,
    residual: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`x` [rows, K] times `weight` [N, K], transposed -> [rows, N].

    `normed`: x goes through an RMS norm first, whose gain is in the weight already. `gated`: the weight's first half
    are gates, and the result silu(gate) * up [rows, N / 2]. `residual` is added to and written in place, and returned.
    `dtype` is the result's.
    """
    rows, size = x.shape
    out_size = len(weight) // 2 if gated else len(weight)
    out = residual if residual is not None else x.new_empty(rows, out_size, dtype=dtype or x.dtype)
    flags = {"NORM": normed, "GATED": gated, "RESIDUAL": residual is not None, "PDL": OVERLAPPED}
    if rows <= _FEW_ROWS:
        block_k = triton.next_power_of_2(size)
        block_n = max(1, _TILE // block_k // (2 if gated else 1))
        while block_n > 1 and out_size // block_n < _PROGRAMS and not INTERPRETED:  # which is slow for each program
            block_n //= 2
        _few_rows[(triton.cdiv(out_size, block_n),)](
            x, weight, out, out_size, eps, size, rows, block_n, block_k, **flags, **options(4)
        )
    else:
        widths = (32, 16, 8) if gated else (64, 32, 16, 8)  # two tiles of 64 in all stages exceed the shared memory
        block_n = next(width for width in widths if out_size >= width * _PROGRAMS or width == 8)
        block_m = min(_MOST_ROWS, max(16, triton.next_power_of_2(rows)))
        block_k = divisor(size // _SLICES, 64)
        # Programs that read the same weights begin together: the first alone gets them from memory.
        grid = (triton.cdiv(rows, block_m), triton.cdiv(out_size, block_n))
        _many_rows[grid](
            x, weight, out, rows, out_size, eps,
            size, block_m, block_n, block_k, _SLICES, **flags, **options(4, _STAGES),
        )  # fmt: skip
    return out


@triton.jit
def _few_rows(
    x_ptr,
    weight_ptr,
    out_ptr,
    out_size,
    eps,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    there = n < out_size
    k_there = k < SIZE
    at = n[:, None] * SIZE + k[None, :]
    tile_there = there[:, None] & k_there[None, :]
    weight = tl.load(weight_ptr + at, mask=tile_there, other=0.0)
    if GATED:
        up_weight = tl.load(weight_ptr + out_size * SIZE + at, mask=tile_there, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for row in tl.static_range(ROWS):
        x = tl.load(x_ptr + row * SIZE + k, mask=k_there, other=0.0).to(tl.float32)
        scale = 1.0
        if NORM:
            scale = tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + eps)
        y = tl.sum(weight.to(tl.float32) * x[None, :], axis=1) * scale
        if GATED:
            up = tl.sum(up_weight.to(tl.float32) * x[None, :], axis=1) * scale
            y = y / (1.0 + tl.exp(-y)) * up
        place = out_ptr + row * out_size + n
        if RESIDUAL:
            y += tl.load(place, mask=there, other=0.0).to(tl.float32)
        tl.store(place, y.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def _many_rows(
    x_ptr,
    weight_ptr,
    out_ptr,
    rows,
    out_size,
    eps,
    SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SLICES: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    # Tiles of few outputs give the warps nothing to share but K: each takes a slice of it, and they are added at last.
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    PART: tl.constexpr = SIZE // SLICES
    ks = tl.arange(0, SLICES)[:, None, None] * PART + tl.arange(0, BLOCK_K)[None, None, :]
    kt = tl.arange(0, SLICES)[:, None, None] * PART + tl.arange(0, BLOCK_K)[None, :, None]
    there = n < out_size
    row_there = m < rows
    acc = tl.zeros([SLICES, BLOCK_M, BLOCK_N], tl.float32)
    up_acc = tl.zeros([SLICES, BLOCK_M, BLOCK_N], tl.float32)
    squares = tl.zeros([SLICES, BLOCK_M, BLOCK_K], tl.float32)
    if PDL:
        gdc_wait()
    for k0 in range(0, PART, BLOCK_K):
        x = tl.load(x_ptr + m[None, :, None] * SIZE + k0 + ks, mask=row_there[None, :, None], other=0.0)
        at = n[None, None, :] * SIZE + k0 + kt
        weight = tl.load(weight_ptr + at, mask=there[None, None, :], other=0.0)
        acc = tl.dot(x, weight, acc)
        if GATED:
            up_weight = tl.load(weight_ptr + out_size * SIZE + at, mask=there[None, None, :], other=0.0)
            up_acc = tl.dot(x, up_weight, up_acc)
        if NORM:
            wide = x.to(tl.float32)
            squares += wide * wide
    if PDL:  # not sooner: what waits takes shared memory from what runs
        gdc_launch_dependents()
    y = tl.sum(acc, axis=0)
    up = tl.sum(up_acc, axis=0)
    if NORM:  # the norm's scale is one number a row, so it can come after the product
        scale = tl.rsqrt(tl.sum(tl.sum(squares, axis=2), axis=0) / SIZE + eps)[:, None]
        y *= scale
        up *= scale
    if GATED:
        y = y / (1.0 + tl.exp(-y)) * up
    place = out_ptr + m[:, None] * out_size + n[None, :]
    tile_there = there[None, :] & row_there[:, None]
    if RESIDUAL:
        y += tl.load(place, mask=tile_there, other=0.0).to(tl.float32)
    tl.store(place, y.to(out_ptr.dtype.element_ty), mask=tile_there)
