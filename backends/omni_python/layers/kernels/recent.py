"""Choosing the next token of each row, with recent tokens penalised and drawn anew, in one kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_python.layers.kernels.codes import FEW, drawn, sampling_of, sortable, unsorted
from omni_python.layers.kernels.launch import OVERLAPPED, options


@dataclass(frozen=True)
class RecentDraws:
    """How each row chooses. `recent` int32 [n, rows] are its last tokens (-1: none), n a power of two.

    float32 [rows]: `temperature` (0: the likeliest), `top_p`, `penalty`; int32 [rows]: `top_k` (0: all), and
    `not_last`, above 0 where the vocabulary's last token is not to be chosen; `uniforms` float32 [2, rows] in 0..1.
    """

    recent: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    penalty: torch.Tensor
    not_last: torch.Tensor
    uniforms: torch.Tensor


def choose_with_recent(
    logits: torch.Tensor, draws: RecentDraws, again_temperature: float, again_top_p: float
) -> torch.Tensor:
    """int64 [rows, 2], whether all `logits` float32 [rows, V <= 65536] are numbers, and each row's token.

    Positive logits of recent tokens are divided by the penalty, negative ones multiplied. Then the likeliest token is
    chosen, or one drawn by `uniforms[0]` as the sampler's `draw` does; where that is a recent one, another draw by
    `uniforms[1]`, of this temperature and top_p, takes its place.
    """
    rows, vocab = logits.shape
    padded = triton.next_power_of_2(vocab)
    chosen = torch.empty(rows, 2, dtype=torch.int64, device=logits.device)
    _choose_with_recent[(rows,)](
        logits, draws.recent, draws.temperature, draws.top_k, draws.top_p, draws.penalty, draws.not_last,
        draws.uniforms, chosen, draws.recent.stride(0), draws.uniforms.stride(0), again_temperature, again_top_p,
        len(draws.recent), vocab, padded, min(FEW, padded), OVERLAPPED, **options(16),
    )  # fmt: skip
    return chosen


@triton.jit
def _both_draws(
    keys, kept, temperature, top_p, uniform, again_temperature, again_top_p, again_uniform, VOCAB: tl.constexpr,
    SORTED: tl.constexpr,
):  # fmt: skip
    value, code = unsorted(tl.topk(keys, SORTED), True)
    once = drawn(value, code, kept, VOCAB, temperature, top_p, uniform)
    again = drawn(value, code, kept, VOCAB, again_temperature, again_top_p, again_uniform)
    return once, again


# Compiling takes long, and where a single number lies in memory does not matter to it.
@triton.jit(
    do_not_specialize=["recent_stride", "uniforms_stride"],
    do_not_specialize_on_alignment=[
        "recent_ptr", "temperature_ptr", "top_k_ptr", "top_p_ptr", "penalty_ptr", "not_last_ptr", "uniforms_ptr",
    ],
)  # fmt: skip
def _choose_with_recent(
    logits_ptr,
    recent_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    penalty_ptr,
    not_last_ptr,
    uniforms_ptr,
    chosen_ptr,
    recent_stride,
    uniforms_stride,
    again_temperature,
    again_top_p,
    RECENT: tl.constexpr,
    VOCAB: tl.constexpr,
    VOCAB_PADDED: tl.constexpr,
    KEPT: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    v = tl.arange(0, VOCAB_PADDED)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    temperature, top_p, kept = sampling_of(row, temperature_ptr, top_k_ptr, top_p_ptr, VOCAB)
    penalty = tl.load(penalty_ptr + row)
    uniform = tl.load(uniforms_ptr + row)
    again_uniform = tl.load(uniforms_ptr + uniforms_stride + row)
    logits = tl.load(logits_ptr + row * VOCAB + v, mask=v < VOCAB, other=-float("inf"))
    no_numbers = tl.sum(((logits < float("inf")) == 0).to(tl.int32), axis=0)
    valid = (no_numbers == 0) & (tl.max(logits, axis=0) > -float("inf"))
    seen = v < 0
    for place in tl.static_range(RECENT):
        seen = seen | (v == tl.load(recent_ptr + place * recent_stride + row))
    logits = tl.where(seen, tl.where(logits > 0.0, logits / penalty, logits * penalty), logits)
    last = (v == VOCAB - 1) & (tl.load(not_last_ptr + row) > 0)
    keys = sortable(tl.where(last, -float("inf"), logits), v, True)
    if kept <= KEPT:
        once, again = _both_draws(
            keys, kept, temperature, top_p, uniform, again_temperature, again_top_p, again_uniform, VOCAB, KEPT
        )
    else:
        once, again = _both_draws(
            keys, kept, temperature, top_p, uniform, again_temperature, again_top_p, again_uniform, VOCAB, VOCAB_PADDED
        )
    recent = tl.load(recent_ptr + tl.arange(0, RECENT) * recent_stride + row)
    repeated = tl.sum((recent == once).to(tl.int32), axis=0) > 0
    token = tl.where(repeated & (temperature > 0.0), again, once)
    tl.store(chosen_ptr + row * 2, valid.to(tl.int64))
    tl.store(chosen_ptr + row * 2 + 1, tl.minimum(token, VOCAB - 1).to(tl.int64))
