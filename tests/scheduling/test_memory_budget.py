"""From a share of a GPU's memory to tokens of KV cache: numbers, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch

from omni_python.layers.decoder import Decoder, DecoderConfig
from omni_python.layers.kv_cache import PAGE_TOKENS
from omni_python.proto.errors import InvalidArgument
from omni_python.scheduling.memory_budget import KVBudget, encoder_pieces, kv_bytes_per_token, prefill_bytes

GIB = 1 << 30
THINKER = DecoderConfig(
    hidden=2048,
    layers=48,
    heads=32,
    kv_heads=4,
    head_dim=128,
    intermediate=768,
    rope_theta=1e6,
    experts=128,
    experts_per_token=8,
    expert_intermediate=768,
)


def test_bytes_of_a_token_are_those_that_the_cache_allocates() -> None:
    assert kv_bytes_per_token(THINKER, 2) == 98304
    small = DecoderConfig(hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, intermediate=16, rope_theta=1e4)
    cache = Decoder(small).new_cache(5)
    allocated = sum(tensor.nbytes for layer in range(3) for tensor in cache.layer(layer))
    assert allocated == 5 * PAGE_TOKENS * kv_bytes_per_token(small, 4)


def test_a_prompt_of_the_published_thinker() -> None:
    # 8 * 2048 + 3 * 40 * 128 + 8 * (3 * 2048 + 4 * 768) = 105472 numbers a token, in bfloat16
    assert prefill_bytes(THINKER, 8192, 2) == 8192 * 2 * 105472


@pytest.mark.parametrize("experts", [0, 8])
def test_a_prompt_needs_no_more_than_is_reserved(experts: int) -> None:
    """The tensors that are alive at once in a forward, counted by the allocations that torch's profiler sees."""
    config = DecoderConfig(
        hidden=64,
        layers=2,
        heads=8,
        kv_heads=2,
        head_dim=16,
        intermediate=256,
        rope_theta=1e4,
        mrope_sections=(4, 2, 2),
        experts=experts,
        experts_per_token=4,
        expert_intermediate=48,
    )
    from omni_python.layers.kv_cache import AttentionPlan, KVRow

    tokens = 512
    decoder = Decoder(config).eval()
    for weight in decoder.parameters():
        weight.data.normal_(0, 0.1)
    cache = decoder.new_cache(tokens // PAGE_TOKENS)
    plan = AttentionPlan.build([KVRow(range(tokens // PAGE_TOKENS), 0, tokens)])
    embeds, positions = torch.randn(tokens, 64), torch.arange(tokens).float().expand(3, -1)
    with torch.inference_mode(), torch.profiler.profile(profile_memory=True, acc_events=True) as seen:
        decoder(embeds, positions, cache, plan)
    held = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert 0 < peak <= prefill_bytes(config, tokens, 4)


def budget(share: float, weights: float = 57.0, reserve: float = 2.0) -> KVBudget:
    return KVBudget("thinker", int(share * GIB), int(weights * GIB), int(reserve * GIB), bytes_per_token=98304)


def test_what_is_left_of_the_share_becomes_whole_pages() -> None:
    # 3 GiB / 98304 B = 32768 tokens exactly; one byte less loses a page
    assert budget(62.0).largest == 32768
    assert KVBudget("thinker", 62 * GIB - 1, 57 * GIB, 2 * GIB, 98304).largest == 32768 - PAGE_TOKENS
    assert budget(62.0).tokens(None, most=10**9) == 32768
    assert budget(62.0).tokens(None, most=100) == 112
    assert budget(62.0).tokens(32768, most=100) == 32768
    assert budget(50.0).largest == 0


def test_more_than_fits_is_refused_with_the_sum() -> None:
    with pytest.raises(InvalidArgument) as caught:
        budget(62.0).tokens(32769, most=10**9)
    said = str(caught.value)
    assert re.match(
        "thinker: kv_tokens 32769 does not fit into its share .*: 62.00 GiB less 57.00 GiB of weights", said
    )
    assert "the largest kv_tokens that fits is 32768" in said
    with pytest.raises(InvalidArgument, match="no KV cache fits .*larger total_gpu_memory_fraction"):
        budget(50.0).tokens(None, most=10**9)


def test_an_encoders_share() -> None:
    workspaces = 128 << 20
    assert encoder_pieces("image_encoder", None, 3 * GIB, GIB, 60_000) == (2 * GIB - workspaces) // 60_000
    assert encoder_pieces("image_encoder", 5000, 3 * GIB, GIB, 60_000) == 5000
    with pytest.raises(InvalidArgument, match="image_encoder: 40000 pieces .* do not fit; .* at most 33554 pieces"):
        encoder_pieces("image_encoder", 40_000, 3 * GIB, GIB, 60_000)
    with pytest.raises(InvalidArgument, match="at most 0 pieces .*; give the stage a larger"):
        encoder_pieces("image_encoder", None, 3 * GIB, 3 * GIB, 60_000)
