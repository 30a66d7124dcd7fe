"""Drawing one residual code of each row, and its embedding, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_python.layers.kernels.launch import OVERLAPPED, options


def draw_codes(
    logits: torch.Tensor,
    embedding: torch.Tensor,
    sampled: torch.Tensor,
    uniforms: torch.Tensor,
    top_k: int,
    top_p: float,
    codes: torch.Tensor,
    total: torch.Tensor,
) -> torch.Tensor:
    """The code of each row from bfloat16 or float32 `logits` [rows, V <= 65536], as the sampler's `draw` chooses it.

    Rows where `sampled` [rows] (bool) draw by `uniforms` [rows] (any stride), others take the likeliest; of equally
    likely codes the first. Writes `codes` int64 [rows] (any stride), adds the code's `embedding` [V, H] to float32
    `total` [rows, H] and returns it, [rows, H].
    """
    rows, vocab = logits.shape
    hidden = embedding.shape[1]
    x = embedding.new_empty(rows, hidden)
    _draw_codes[(rows,)](
        logits, embedding, sampled, uniforms, codes, total, x, uniforms.stride(0), codes.stride(0), top_p,
        vocab, triton.next_power_of_2(vocab), top_k, triton.next_power_of_2(top_k),
        hidden, triton.next_power_of_2(hidden), logits.dtype == torch.float32, OVERLAPPED, **options(4),
    )  # fmt: skip
    return x


@triton.jit
def _draw_codes(
    logits_ptr,
    embedding_ptr,
    sampled_ptr,
    uniforms_ptr,
    codes_ptr,
    total_ptr,
    x_ptr,
    uniforms_stride,
    codes_stride,
    top_p,
    VOCAB: tl.constexpr,
    VOCAB_PADDED: tl.constexpr,
    TOP_K: tl.constexpr,
    KEPT: tl.constexpr,
    HIDDEN: tl.constexpr,
    HIDDEN_PADDED: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    v = tl.arange(0, VOCAB_PADDED)
    h = tl.arange(0, HIDDEN_PADDED)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    logits = tl.load(logits_ptr + row * VOCAB + v, mask=v < VOCAB, other=-float("inf"))
    # A number's bits, ordered as its values are, above the code's complement: one sort of integers orders by both.
    if WIDE:
        bits = logits.to(tl.int32, bitcast=True).to(tl.int64)
        best = tl.topk((tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 16) | (65535 - v), KEPT)
        order = best >> 16
        value = tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        bits = logits.to(tl.int16, bitcast=True).to(tl.int32)
        best = tl.topk((tl.where(bits < 0, bits ^ 0x7FFF, bits) << 16) | (65535 - v), KEPT)
        order = best >> 16
        value = tl.where(order < 0, order ^ 0x7FFF, order).to(tl.int16).to(tl.bfloat16, bitcast=True).to(tl.float32)
    code = (65535 - (best & 0xFFFF)).to(tl.int32)
    rank = tl.arange(0, KEPT)
    value = tl.where((rank < TOP_K) & (code < VOCAB), value, -float("inf"))
    probability = tl.exp(value - tl.max(value, axis=0))
    probability = probability / tl.sum(probability, axis=0)
    before = tl.cumsum(probability, axis=0) - probability
    probability = tl.where(before >= top_p, 0.0, probability)
    reached = tl.cumsum(probability, axis=0)
    level = tl.load(uniforms_ptr + row * uniforms_stride) * tl.sum(probability, axis=0)
    pick = tl.sum((reached <= level).to(tl.int32), axis=0)
    last = tl.sum((probability > 0.0).to(tl.int32), axis=0) - 1
    pick = tl.where(tl.load(sampled_ptr + row) != 0, tl.minimum(pick, last), 0)
    chosen = tl.sum(tl.where(rank == pick, code, 0), axis=0)
    chosen = tl.minimum(chosen, VOCAB - 1)  # where the logits are no numbers
    tl.store(codes_ptr + row * codes_stride, chosen.to(tl.int64))
    there = h < HIDDEN
    x = tl.load(embedding_ptr + chosen.to(tl.int64) * HIDDEN + h, mask=there, other=0.0)
    tl.store(x_ptr + row * HIDDEN + h, x, mask=there)
    place = total_ptr + row * HIDDEN + h
    tl.store(place, tl.load(place, mask=there, other=0.0) + x.to(tl.float32), mask=there)
