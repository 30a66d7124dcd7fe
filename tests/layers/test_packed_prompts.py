"""Packed prompts give what each prompt gives alone, and leave the same keys and values."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from omni_python.layers.decoder import Decoder, DecoderConfig, Deepstack
from omni_python.layers.kv_cache import PAGE_TOKENS, AttentionPlan, KVRow, PagedKVCache
from omni_python.layers.packed_prompts import Computation, PackedPrompts, PackedRows

pytestmark = pytest.mark.filterwarnings("ignore")  # numpy's, of the interpreter
CONFIG = DecoderConfig(
    hidden=64,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=32,
    intermediate=48,
    rope_theta=1e4,
    mrope_sections=(6, 5, 5),
    experts=6,
    experts_per_token=2,
    expert_intermediate=32,
    shared_intermediate=64,
)
TAP = 2
PAGES = 40


def random_decoder(config: DecoderConfig, dtype: torch.dtype) -> Decoder:
    decoder = Decoder(config)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, mean=parameter.dim() == 1, std=0.3)
    return decoder.to(dtype)


def plainly(decoder: Decoder, cache: PagedKVCache) -> Computation:
    """What a captured computation has to do, by the ordinary operations, prompt by prompt."""

    def compute(rows: PackedRows) -> tuple[torch.Tensor, torch.Tensor]:
        firsts = rows.first.unique().tolist()
        kv_rows = []
        for first, end in zip(firsts, [*firsts[1:], len(rows.first)], strict=True):
            pages = (rows.slots[first:end:PAGE_TOKENS] // PAGE_TOKENS).tolist()
            kv_rows.append(KVRow(pages, 0, end - first))
        every = torch.arange(len(rows.embeds))
        deepstack = Deepstack(every, list(rows.deepstack))
        plan = AttentionPlan.build(kv_rows)
        hidden, tapped = decoder(rows.embeds, rows.positions, cache, plan, deepstack, TAP)
        assert tapped is not None
        return hidden, tapped

    return compute


def check(
    decoder: Decoder,
    make: Callable[[PagedKVCache, tuple[int, ...]], PackedPrompts],
    tolerance: float,
    rounds: int,
) -> None:
    """Fresh prompts of random lengths, packed, against one call of the decoder for each; with and without deepstack."""
    dtype = decoder.norm.weight.dtype
    packed_cache, cache = decoder.new_cache(PAGES), decoder.new_cache(PAGES)
    packed = make(packed_cache, (16, 48))
    assert packed.most == 48
    for round_ in range(rounds):
        lengths = [random.randint(1, 18) for _ in range(random.randint(1, 3))]
        if sum(lengths) > packed.most:
            lengths = lengths[:2]
        owned = torch.randperm(PAGES - 1).split(2)
        kv_rows = [KVRow(pages.tolist(), 0, length) for pages, length in zip(owned, lengths, strict=False)]
        embeds = torch.randn(sum(lengths), CONFIG.hidden, dtype=dtype)
        positions = torch.randint(0, 100, (3, sum(lengths))).float()
        starts = [sum(lengths[:index]) for index in range(len(lengths))]
        deepstack = None
        if round_ % 2:
            tokens = torch.randperm(sum(lengths))[: random.randint(1, sum(lengths))]
            deepstack = Deepstack(tokens, [torch.randn(len(tokens), CONFIG.hidden, dtype=dtype) for _ in range(2)])
        plan = AttentionPlan.build(kv_rows)
        hidden, tapped = packed(embeds, positions, starts, plan.slots, deepstack)
        expected, expected_tap = decoder(embeds.clone(), positions, cache, plan, deepstack, TAP)
        torch.testing.assert_close(hidden, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(tapped, expected_tap, rtol=tolerance, atol=tolerance)
        for layer in range(CONFIG.layers):
            for ours, theirs in zip(packed_cache.layer(layer), cache.layer(layer), strict=True):
                torch.testing.assert_close(ours[plan.slots], theirs[plan.slots], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("experts", [0, CONFIG.experts])
@torch.inference_mode()
def test_the_rows_are_those_of_the_prompts(experts: int) -> None:
    exact = not experts  # torch multiplies by groups in float32 at best
    decoder = random_decoder(replace(CONFIG, experts=experts), torch.float64 if exact else torch.float32)

    def make(cache: PagedKVCache, sizes: tuple[int, ...]) -> PackedPrompts:
        like = decoder.norm.weight.new_empty(0, CONFIG.hidden)
        return PackedPrompts(plainly(decoder, cache), like, (PAGES - 1) * PAGE_TOKENS, 2, sizes)

    check(decoder, make, 1e-9 if exact else 2e-4, rounds=12)


@pytest.mark.parametrize("qk_norm", [True, False])
@torch.inference_mode()
def test_the_fused_kernels_do_the_same(qk_norm: bool) -> None:
    """In Triton's interpreter, on the CPU."""
    if torch.cuda.is_available():
        pytest.skip("test_kernels.py and scripts/check_kernels_gpu.py check the kernels on a GPU")
    import os

    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
    pytest.importorskip(
        "triton", reason="triton is not installed: pip install --no-deps triton==3.6.0 for its interpreter"
    )
    from omni_python.layers.fused_decoder import FusedDecoder

    config = CONFIG if qk_norm else replace(CONFIG, qk_norm=False, experts=0)
    decoder = random_decoder(config, torch.float32)
    fused = FusedDecoder(decoder, 1, 1)
    check(decoder, lambda cache, sizes: fused.packed_prompts(cache, TAP, 2, sizes), 2e-4, rounds=4 if qk_norm else 2)
