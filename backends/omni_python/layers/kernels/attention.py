"""Attention of a decode step: norm and rotation of queries and keys, the write into the paged cache, and attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_python.layers.kernels.launch import OVERLAPPED, options
from omni_python.layers.kv_cache import PAGE_TOKENS


@dataclass(frozen=True)
class Where:
    """Where the rows of a decode step stand.

    `page_table` int32 [sequences, pages]; `row` int32 [sequences] is each sequence's row of it; `past` int32
    [sequences] cached tokens. `cos`, `sin` float32 [sequences * new, head_dim / 2] of the new tokens' positions.
    """

    page_table: torch.Tensor
    row: torch.Tensor
    past: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    new: int = 1


@dataclass(frozen=True)
class Heads:
    """How many heads queries have, and keys and values, each of `dim` dimensions."""

    heads: int
    kv_heads: int
    dim: int

    @property
    def shared(self) -> int:
        """How many query heads share a key head."""
        return self.heads // self.kv_heads


class SplitBuffers:
    """Room for the parts of sequences whose attention is split `splits` ways among multiprocessors; 1: not at all."""

    def __init__(self, splits: int, sequences: int, heads: Heads, device: torch.device | str) -> None:
        self.splits = splits
        pairs = sequences * heads.kv_heads
        queries = max(16, triton.next_power_of_2(heads.shared))
        self.out = torch.empty(pairs, splits, queries, heads.dim, device=device)
        self.top = torch.empty(pairs, splits, queries, device=device)
        self.total = torch.empty(pairs, splits, queries, device=device)
        self.arrived = torch.zeros(pairs, dtype=torch.int32, device=device)


def attend(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    heads: Heads,
    keys: torch.Tensor,
    values: torch.Tensor,
    where: Where,
    buffers: SplitBuffers,
) -> torch.Tensor:
    """`qkv` [sequences * new, (heads + 2 * kv_heads) * dim] -> [sequences * new, heads * dim].

    `q_norm` and `k_norm` [dim] are the gains of queries' and keys' norms; None: they have none. `keys` and `values`
    [slots, kv_heads, dim] get the new tokens; a sequence with two new ones must have no past.
    """
    sequences = len(where.past)
    out = qkv.new_empty(len(qkv), heads.heads * heads.dim)
    grid = (sequences, heads.kv_heads, buffers.splits)
    _attend[grid](
        qkv,
        qkv if q_norm is None else q_norm,  # which is not read then
        qkv if k_norm is None else k_norm,
        where.cos,
        where.sin,
        keys,
        values,
        where.page_table,
        where.row,
        where.past,
        out,
        buffers.out,
        buffers.top,
        buffers.total,
        buffers.arrived,
        where.page_table.stride(0),
        eps,
        heads.dim**-0.5,
        heads.heads,
        heads.kv_heads,
        heads.dim,
        heads.shared,
        where.new,
        max(16, triton.next_power_of_2(heads.shared * where.new)),
        buffers.splits,
        max(2, triton.next_power_of_2(buffers.splits)),
        PAGE_TOKENS,
        32,
        q_norm is not None,
        OVERLAPPED,
        **options(4, 2),
    )
    return out


@triton.jit
def gains(norm_ptr, DIM: tl.constexpr, NORM: tl.constexpr):
    """Both halves of a norm's gain [dim]; where there is no norm, zeros that are not used."""
    half = tl.arange(0, DIM // 2)
    low = tl.zeros([DIM // 2], tl.float32)
    high = tl.zeros([DIM // 2], tl.float32)
    if NORM:
        low = tl.load(norm_ptr + half).to(tl.float32)
        high = tl.load(norm_ptr + DIM // 2 + half).to(tl.float32)
    return low, high


@triton.jit
def normed_and_turned(low, high, gain_low, gain_high, cos, sin, eps, DIM: tl.constexpr, NORM: tl.constexpr):
    """Both halves of rows [n, dim / 2], normed over both where there is a norm, then turned."""
    if NORM:
        scale = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / DIM + eps)[:, None]
        low = low * scale * gain_low[None, :]
        high = high * scale * gain_high[None, :]
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _cached(
    keys_ptr,
    values_ptr,
    pages_ptr,
    start,
    end,
    kv_head,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Both halves of the keys of cached tokens `start`..`start + BLOCK`, and their values; 0 from `end` on."""
    half = tl.arange(0, DIM // 2)
    place = start + tl.arange(0, BLOCK)
    there = place < end
    page = tl.load(pages_ptr + place // PAGE, mask=there, other=0)
    slot = ((page * PAGE + place % PAGE).to(tl.int64) * KV_HEADS + kv_head) * DIM
    key_at = keys_ptr + slot[:, None] + half[None, :]
    key_low = tl.load(key_at, mask=there[:, None], other=0.0)
    key_high = tl.load(key_at + DIM // 2, mask=there[:, None], other=0.0)
    value = tl.load(values_ptr + slot[:, None] + tl.arange(0, DIM)[None, :], mask=there[:, None], other=0.0)
    return key_low, key_high, value


@triton.jit
def _attend(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    keys_ptr,
    values_ptr,
    page_table_ptr,
    table_row_ptr,
    past_ptr,
    out_ptr,
    part_out_ptr,
    part_top_ptr,
    part_total_ptr,
    arrived_ptr,
    table_stride,
    eps,
    scaling,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SHARED: tl.constexpr,
    NEW: tl.constexpr,
    QUERIES: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    HALF: tl.constexpr = DIM // 2
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * DIM
    half = tl.arange(0, HALF)
    dim = tl.arange(0, DIM)
    query = tl.arange(0, QUERIES)
    token = query // SHARED  # of the sequence's new ones
    query_there = token < NEW
    head = kv_head * SHARED + query % SHARED
    # All but the new tokens' queries, keys and values was written before the kernel that may still run.
    past = tl.load(past_ptr + sequence)
    pages_ptr = page_table_ptr + tl.load(table_row_ptr + sequence) * table_stride
    chunk = tl.cdiv(tl.cdiv(past, SPLITS), BLOCK) * BLOCK
    begin = split * chunk
    end = tl.minimum(begin + chunk, past)
    block = tl.arange(0, BLOCK)
    key_low, key_high, value = _cached(keys_ptr, values_ptr, pages_ptr, begin, end, kv_head, KV_HEADS, DIM, PAGE, BLOCK)

    row = sequence * NEW + token
    angle = row[:, None] * HALF + half[None, :]
    cos = tl.load(cos_ptr + angle, mask=query_there[:, None], other=0.0)
    sin = tl.load(sin_ptr + angle, mask=query_there[:, None], other=0.0)
    gain_low, gain_high = gains(q_norm_ptr, DIM, NORM)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    q_at = qkv_ptr + row[:, None] * WIDTH + head[:, None] * DIM + half[None, :]
    q_low = tl.load(q_at, mask=query_there[:, None], other=0.0).to(tl.float32)
    q_high = tl.load(q_at + HALF, mask=query_there[:, None], other=0.0).to(tl.float32)
    q_low, q_high = normed_and_turned(q_low, q_high, gain_low, gain_high, cos, sin, eps, DIM, NORM)
    dtype = qkv_ptr.dtype.element_ty
    q_low = (q_low * scaling).to(dtype)
    q_high = (q_high * scaling).to(dtype)

    top = tl.full([QUERIES], -1.0e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, DIM], tl.float32)
    for start in range(begin, end, BLOCK):
        if start != begin:
            key_low, key_high, value = _cached(
                keys_ptr, values_ptr, pages_ptr, start, end, kv_head, KV_HEADS, DIM, PAGE, BLOCK
            )
        seen = start + block < end
        scores = tl.dot(q_low, tl.trans(key_low)) + tl.dot(q_high, tl.trans(key_high))
        scores = tl.where(seen[None, :], scores, -1.0e30)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        weight = tl.where(seen[None, :], tl.exp(scores - higher[:, None]), 0.0)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        acc = acc * shrink[:, None] + tl.dot(weight.to(dtype), value)
        top = higher

    if split == SPLITS - 1:  # the one with the fewest cached tokens takes the new ones
        fresh = tl.arange(0, 16)
        fresh_there = fresh < NEW
        fresh_row = sequence * NEW + fresh
        fresh_angle = fresh_row[:, None] * HALF + half[None, :]
        new_cos = tl.load(cos_ptr + fresh_angle, mask=fresh_there[:, None], other=0.0)
        new_sin = tl.load(sin_ptr + fresh_angle, mask=fresh_there[:, None], other=0.0)
        k_at = qkv_ptr + fresh_row[:, None] * WIDTH + (HEADS + kv_head) * DIM + half[None, :]
        low = tl.load(k_at, mask=fresh_there[:, None], other=0.0).to(tl.float32)
        high = tl.load(k_at + HALF, mask=fresh_there[:, None], other=0.0).to(tl.float32)
        gain_low, gain_high = gains(k_norm_ptr, DIM, NORM)
        low, high = normed_and_turned(low, high, gain_low, gain_high, new_cos, new_sin, eps, DIM, NORM)
        new_low = low.to(dtype)
        new_high = high.to(dtype)
        v_at = qkv_ptr + fresh_row[:, None] * WIDTH + (HEADS + KV_HEADS + kv_head) * DIM + dim[None, :]
        new_value = tl.load(v_at, mask=fresh_there[:, None], other=0.0)
        place = past + fresh
        page = tl.load(pages_ptr + place // PAGE, mask=fresh_there, other=0)
        slot = ((page * PAGE + place % PAGE).to(tl.int64) * KV_HEADS + kv_head) * DIM
        tl.store(keys_ptr + slot[:, None] + half[None, :], new_low, mask=fresh_there[:, None])
        tl.store(keys_ptr + slot[:, None] + HALF + half[None, :], new_high, mask=fresh_there[:, None])
        tl.store(values_ptr + slot[:, None] + dim[None, :], new_value, mask=fresh_there[:, None])
        scores = tl.dot(q_low, tl.trans(new_low)) + tl.dot(q_high, tl.trans(new_high))
        seen2 = fresh_there[None, :] & (fresh[None, :] <= token[:, None])
        scores = tl.where(seen2, scores, -1.0e30)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        weight = tl.where(seen2, tl.exp(scores - higher[:, None]), 0.0)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        acc = acc * shrink[:, None] + tl.dot(weight.to(dtype), new_value)
        top = higher

    out_at = out_ptr + row[:, None] * (HEADS * DIM) + head[:, None] * DIM + dim[None, :]
    if SPLITS == 1:
        tl.store(out_at, (acc / total[:, None]).to(dtype), mask=query_there[:, None])
    else:
        pair = sequence * KV_HEADS + kv_head
        part = (pair * SPLITS + split) * QUERIES + query
        tl.store(part_out_ptr + part[:, None] * DIM + dim[None, :], acc)
        tl.store(part_top_ptr + part, top)
        tl.store(part_total_ptr + part, total)
        tl.debug_barrier()
        if tl.atomic_add(arrived_ptr + pair, 1, sem="acq_rel") == SPLITS - 1:
            tl.debug_barrier()
            splits = tl.arange(0, SPLITS_PADDED)
            parts = (pair * SPLITS + splits)[:, None] * QUERIES + query[None, :]
            there = (splits < SPLITS)[:, None] & query_there[None, :]
            tops = tl.load(part_top_ptr + parts, mask=there, other=-1.0e30, cache_modifier=".cg")
            totals = tl.load(part_total_ptr + parts, mask=there, other=0.0, cache_modifier=".cg")
            highest = tl.max(tops, axis=0)
            whole = tl.sum(totals * tl.exp(tops - highest[None, :]), axis=0)
            joined = tl.zeros([QUERIES, DIM], tl.float32)
            for index in tl.static_range(SPLITS):
                part = (pair * SPLITS + index) * QUERIES + query
                one = tl.load(part_out_ptr + part[:, None] * DIM + dim[None, :], cache_modifier=".cg")
                share = tl.exp(tl.load(part_top_ptr + part, cache_modifier=".cg") - highest)
                joined += one * share[:, None]
            tl.store(out_at, (joined / whole[:, None]).to(dtype), mask=query_there[:, None])
            tl.store(arrived_ptr + pair, 0)
