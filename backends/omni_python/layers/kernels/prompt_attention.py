"""Attention of whole prompts, packed one after the other, with norm, rotation and the write into the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_python.layers.kernels.attention import Heads, gains, normed_and_turned
from omni_python.layers.kernels.launch import OVERLAPPED, options

_QUERIES = 64
"""Of one program: tokens times the heads that share a key head."""
_KEYS = 32


def attend_prompts(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    heads: Heads,
    keys: torch.Tensor,
    values: torch.Tensor,
    first: torch.Tensor,
    slots: torch.Tensor,
    turns: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """`qkv` [tokens, (heads + 2 * kv_heads) * dim] -> [tokens, heads * dim].

    `q_norm` and `k_norm` [dim] are the gains of queries' and keys' norms; None: they have none. Token i attends to the
    tokens from `first`[i] (int32 [tokens]), where its prompt begins, to itself. Its key and value go to `slots`[i]
    (int64 [tokens]) of `keys` and `values` [slots, kv_heads, dim]. `turns` are the cosine and the sine of the tokens'
    positions, float32 [tokens, dim / 2].
    """
    tokens = len(qkv)
    out = qkv.new_empty(tokens, heads.heads * heads.dim)
    shared = triton.next_power_of_2(heads.shared)
    block = max(1, _QUERIES // shared)
    _attend_prompts[(triton.cdiv(tokens, block), heads.kv_heads)](
        qkv, qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm, *turns, first, slots, keys, values,
        out, tokens, eps, heads.dim**-0.5, heads.heads, heads.kv_heads, heads.dim, heads.shared,
        block, max(16, block * shared), _KEYS, q_norm is not None, OVERLAPPED, **options(4, 2),
    )  # fmt: skip
    return out


@triton.jit
def _attend_prompts(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    first_ptr,
    slots_ptr,
    keys_ptr,
    values_ptr,
    out_ptr,
    tokens,
    eps,
    scaling,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SHARED: tl.constexpr,
    TOKENS: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    mine = tl.program_id(0) * TOKENS
    kv_head = tl.program_id(1)
    HALF: tl.constexpr = DIM // 2
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * DIM
    half = tl.arange(0, HALF)
    dim = tl.arange(0, DIM)
    query = tl.arange(0, QUERIES)
    row = mine + query // SHARED
    query_there = (query // SHARED < TOKENS) & (row < tokens)
    head = kv_head * SHARED + query % SHARED
    q_gain_low, q_gain_high = gains(q_norm_ptr, DIM, NORM)
    k_gain_low, k_gain_high = gains(k_norm_ptr, DIM, NORM)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    angle = row[:, None] * HALF + half[None, :]
    cos = tl.load(cos_ptr + angle, mask=query_there[:, None], other=0.0)
    sin = tl.load(sin_ptr + angle, mask=query_there[:, None], other=0.0)
    q_at = qkv_ptr + row[:, None] * WIDTH + head[:, None] * DIM + half[None, :]
    q_low = tl.load(q_at, mask=query_there[:, None], other=0.0).to(tl.float32)
    q_high = tl.load(q_at + HALF, mask=query_there[:, None], other=0.0).to(tl.float32)
    q_low, q_high = normed_and_turned(q_low, q_high, q_gain_low, q_gain_high, cos, sin, eps, DIM, NORM)
    dtype = qkv_ptr.dtype.element_ty
    q_low = (q_low * scaling).to(dtype)
    q_high = (q_high * scaling).to(dtype)

    first = tl.load(first_ptr + row, mask=query_there, other=tokens)
    begin = tl.min(first, axis=0)
    end = tl.minimum(mine + TOKENS, tokens)
    block = tl.arange(0, BLOCK)
    top = tl.full([QUERIES], -1.0e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, DIM], tl.float32)
    for start in range(begin, end, BLOCK):
        key = start + block
        there = key < end
        key_angle = key[:, None] * HALF + half[None, :]
        key_cos = tl.load(cos_ptr + key_angle, mask=there[:, None], other=0.0)
        key_sin = tl.load(sin_ptr + key_angle, mask=there[:, None], other=0.0)
        k_at = qkv_ptr + key[:, None] * WIDTH + (HEADS + kv_head) * DIM + half[None, :]
        low = tl.load(k_at, mask=there[:, None], other=0.0).to(tl.float32)
        high = tl.load(k_at + HALF, mask=there[:, None], other=0.0).to(tl.float32)
        low, high = normed_and_turned(low, high, k_gain_low, k_gain_high, key_cos, key_sin, eps, DIM, NORM)
        low = low.to(dtype)
        high = high.to(dtype)
        v_at = qkv_ptr + key[:, None] * WIDTH + (HEADS + KV_HEADS + kv_head) * DIM + dim[None, :]
        value = tl.load(v_at, mask=there[:, None], other=0.0)
        kept = there & (key >= mine)  # each key is turned by every program that reads it, and stored by its own
        slot = tl.load(slots_ptr + key, mask=kept, other=0)
        cached = (slot * KV_HEADS + kv_head) * DIM
        tl.store(keys_ptr + cached[:, None] + half[None, :], low, mask=kept[:, None])
        tl.store(keys_ptr + cached[:, None] + HALF + half[None, :], high, mask=kept[:, None])
        tl.store(values_ptr + cached[:, None] + dim[None, :], value, mask=kept[:, None])
        seen = query_there[:, None] & (key[None, :] <= row[:, None]) & (key[None, :] >= first[:, None])
        scores = tl.dot(q_low, tl.trans(low)) + tl.dot(q_high, tl.trans(high))
        scores = tl.where(seen, scores, -1.0e30)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        weight = tl.where(seen, tl.exp(scores - higher[:, None]), 0.0)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        acc = acc * shrink[:, None] + tl.dot(weight.to(dtype), value)
        top = higher
    out_at = out_ptr + row[:, None] * (HEADS * DIM) + head[:, None] * DIM + dim[None, :]
    tl.store(out_at, (acc / total[:, None]).to(dtype), mask=query_there[:, None])
