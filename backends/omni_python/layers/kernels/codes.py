"""Drawing one residual code of each row, and its embedding, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_python.layers.kernels.launch import OVERLAPPED, options

FEW = 64
"""Rows that keep at most so many codes have the others not sorted."""


def draw_codes(
    logits: torch.Tensor,
    embedding: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    uniforms: torch.Tensor,
    codes: torch.Tensor,
    total: torch.Tensor,
    most: int | None = None,
) -> torch.Tensor:
    """The code of each row from bfloat16 or float32 `logits` [rows, V <= 65536], as the sampler's `draw` chooses it.

    Rows whose `temperature` [rows] is 0 take the likeliest code, others draw by `uniforms` [rows] from the `top_k`
    [rows] (integers; 0: all) likeliest, and of those the fewest that together have `top_p` [rows] of the probability;
    of equally likely codes the first comes first. `most` says that no row has a larger `top_k`, nor 0.
    Writes `codes` int64 [rows] (any stride), adds the code's `embedding` [V, H] to float32 `total` [rows, H] and
    returns it, [rows, H].
    """
    rows, vocab = logits.shape
    hidden = embedding.shape[1]
    padded = triton.next_power_of_2(vocab)
    few = min(FEW, padded, triton.next_power_of_2(most or vocab))
    x = embedding.new_empty(rows, hidden)
    _draw_codes[(rows,)](
        logits, embedding, temperature, top_k, top_p, uniforms, codes, total, x, uniforms.stride(0), codes.stride(0),
        vocab, padded, few, few < (most or vocab), hidden, triton.next_power_of_2(hidden),
        logits.dtype == torch.float32, OVERLAPPED, **options(4),
    )  # fmt: skip
    return x


@triton.jit
def sortable(logits, v, WIDE: tl.constexpr):
    """Integers that are ordered as `logits` are, and by `v` (0..65535), the lowest first, where those are equal.
    `WIDE` logits are float32, others bfloat16."""
    if WIDE:
        bits = logits.to(tl.int32, bitcast=True).to(tl.int64)
        ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    else:
        bits = logits.to(tl.int16, bitcast=True).to(tl.int32)
        ordered = tl.where(bits < 0, bits ^ 0x7FFF, bits)
    return (ordered << 16) | (65535 - v)


@triton.jit
def unsorted(keys, WIDE: tl.constexpr):
    """The float32 logits and the int32 `v` of `sortable`'s integers."""
    order = keys >> 16
    if WIDE:
        value = tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        value = tl.where(order < 0, order ^ 0x7FFF, order).to(tl.int16).to(tl.bfloat16, bitcast=True).to(tl.float32)
    return value, (65535 - (keys & 0xFFFF)).to(tl.int32)


@triton.jit
def drawn(value, code, kept, vocab, temperature, top_p, uniform):
    """The draw, of codes in the order of their logits' `value`, the highest first, of which `kept` may be drawn."""
    rank = tl.arange(0, value.shape[0])
    value = value / tl.maximum(temperature, 1.0e-5)
    value = tl.where((rank < kept) & (code < vocab), value, -float("inf"))
    probability = tl.exp(value - tl.max(value, axis=0))
    probability = probability / tl.sum(probability, axis=0)
    before = tl.cumsum(probability, axis=0) - probability
    probability = tl.where(before >= tl.maximum(top_p, 1.0e-5), 0.0, probability)
    reached = tl.cumsum(probability, axis=0)
    level = uniform * tl.sum(probability, axis=0)
    pick = tl.sum((reached <= level).to(tl.int32), axis=0)
    last = tl.sum((probability > 0.0).to(tl.int32), axis=0) - 1
    pick = tl.where(temperature > 0.0, tl.minimum(pick, last), 0)
    return tl.sum(tl.where(rank == pick, code, 0), axis=0)


@triton.jit
def _draw_of(keys, kept, temperature, top_p, uniform, VOCAB: tl.constexpr, SORTED: tl.constexpr, WIDE: tl.constexpr):
    value, code = unsorted(tl.topk(keys, SORTED), WIDE)
    return drawn(value, code, kept, VOCAB, temperature, top_p, uniform)


@triton.jit
def sampling_of(row, temperature_ptr, top_k_ptr, top_p_ptr, VOCAB: tl.constexpr):
    """A row's temperature, its top_p, and how many of the likeliest may be drawn: one where the temperature is 0."""
    temperature = tl.load(temperature_ptr + row)
    kept = tl.load(top_k_ptr + row).to(tl.int32)
    kept = tl.where(kept > 0, kept, VOCAB)
    return temperature, tl.load(top_p_ptr + row), tl.where(temperature > 0.0, kept, 1)


# Compiling takes long, and where a single number lies in memory does not matter to it.
@triton.jit(
    do_not_specialize=["uniforms_stride", "codes_stride"],
    do_not_specialize_on_alignment=["temperature_ptr", "top_k_ptr", "top_p_ptr", "uniforms_ptr", "codes_ptr"],
)
def _draw_codes(
    logits_ptr,
    embedding_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    uniforms_ptr,
    codes_ptr,
    total_ptr,
    x_ptr,
    uniforms_stride,
    codes_stride,
    VOCAB: tl.constexpr,
    VOCAB_PADDED: tl.constexpr,
    KEPT: tl.constexpr,
    MANY: tl.constexpr,
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
    temperature, top_p, kept = sampling_of(row, temperature_ptr, top_k_ptr, top_p_ptr, VOCAB)
    uniform = tl.load(uniforms_ptr + row * uniforms_stride)
    logits = tl.load(logits_ptr + row * VOCAB + v, mask=v < VOCAB, other=-float("inf"))
    keys = sortable(logits, v, WIDE)
    if MANY:
        if kept <= KEPT:
            chosen = _draw_of(keys, kept, temperature, top_p, uniform, VOCAB, KEPT, WIDE)
        else:
            chosen = _draw_of(keys, kept, temperature, top_p, uniform, VOCAB, VOCAB_PADDED, WIDE)
    else:
        chosen = _draw_of(keys, kept, temperature, top_p, uniform, VOCAB, KEPT, WIDE)
    chosen = tl.minimum(chosen, VOCAB - 1)  # where the logits are no numbers
    tl.store(codes_ptr + row * codes_stride, chosen.to(tl.int64))
    there = h < HIDDEN
    x = tl.load(embedding_ptr + chosen.to(tl.int64) * HIDDEN + h, mask=there, other=0.0)
    tl.store(x_ptr + row * HIDDEN + h, x, mask=there)
    place = total_ptr + row * HIDDEN + h
    tl.store(place, tl.load(place, mask=there, other=0.0) + x.to(tl.float32), mask=there)
