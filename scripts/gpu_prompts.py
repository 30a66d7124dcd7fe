"""Packed prompts and first steps of the thinker and the talker on a GPU: a part of check_kernels_gpu."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from bench_talker_step import new_talker
from gpu_measures import BF16, DEVICE, Bench, error, events, expect, finished, print_kernels, randn, wall

from omni_python.layers.decoder import Decoder, DecoderConfig, Deepstack
from omni_python.layers.fused_decoder import FusedDecoder
from omni_python.layers.kv_cache import AttentionPlan, KVRow
from omni_python.layers.packed_prompts import PROMPT_SIZES
from omni_python.models.loading.dummy import draw_weights
from omni_python.models.media.placeholders import MediaTokens
from omni_python.models.qwen3_omni.payloads import Prompt, TalkerPrompt, ThinkerInput
from omni_python.models.qwen3_omni.talker_prompt import TalkerTokens
from omni_python.models.qwen3_omni.talker_runner import TalkerModelRunner
from omni_python.models.qwen3_omni.thinker import Thinker
from omni_python.models.qwen3_omni.thinker_runner import ThinkerModelRunner
from omni_python.models.qwen3_omni.weights import decoder_config
from omni_python.models.text.options import GenerationOptions
from omni_python.models.text.payloads import AnswerToken
from omni_python.proto.sampling import SamplingParams
from omni_python.proto.work import IncomingMessage

SAMPLING = SamplingParams(temperature=0.9, top_k=50, max_tokens=64, ignore_eos=True, seed=1)
NO_TOKENS: Any = None  # read only for stop strings


def check_layers(bench: Bench) -> None:
    """Three layers of the real size: packed prompts and plain operations, each against float32."""
    text = decoder_config(bench.config.thinker_config.text_config)
    talker = decoder_config(bench.config.talker_config.text_config)
    for name, config in (("thinker", text), ("talker", talker)):
        decoder = new_decoder(replace(config, layers=3))
        for lengths in ([20], [60], [30, 31, 29], [60] * 8):
            compare(name, decoder, lengths)


def new_decoder(config: DecoderConfig) -> Decoder:
    with torch.device("meta"):
        decoder = Decoder(config)
    return draw_weights(decoder, BF16, DEVICE)


def compare(name: str, decoder: Decoder, lengths: Sequence[int]) -> None:
    tokens, pages = sum(lengths), 40
    hidden = decoder.config.hidden
    embeds = randn(tokens, hidden)
    positions = torch.arange(tokens, device=DEVICE).float().expand(3, -1) % 97
    at = torch.randperm(tokens, device=DEVICE)[: tokens // 2]
    deepstack = Deepstack(at, [randn(len(at), hidden) for _ in range(2)])
    kv_rows = [KVRow(range(4 * index, 4 * index + 4), 0, length) for index, length in enumerate(lengths)]
    plan = AttentionPlan.build(kv_rows, DEVICE)
    cache = decoder.new_cache(pages)
    plain, plain_tap = decoder(embeds, positions, cache, plan, deepstack, 2)
    decoder.float()
    wide = Deepstack(at, [layer.float() for layer in deepstack.layers])
    expected, expected_tap = decoder(embeds.float(), positions, decoder.new_cache(pages), plan, wide, 2)
    decoder.to(BF16)
    fused = FusedDecoder(decoder, 1, 1)
    packed_cache = decoder.new_cache(pages)
    packed = fused.packed_prompts(packed_cache, 2, 2, PROMPT_SIZES)
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    made, made_tap = packed(embeds, positions, starts, plan.slots, deepstack)
    assert plain_tap is not None and expected_tap is not None
    far = (made.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    print(f"  {name} {list(lengths)}: median row {far.median():.4f}, worst {far.max():.4f}")
    expect("plain, output", error(plain, expected), 0.2)
    expect("packed, output", error(made, expected), 0.2)
    expect("plain, tapped", error(plain_tap, expected_tap), 0.2)
    expect("packed, tapped", error(made_tap, expected_tap), 0.2)
    for one, other in zip(packed_cache.layer(0), cache.layer(0), strict=True):
        expect("cache of the first layer", error(one[plan.slots], other[plan.slots]), 2e-2)
    again, _ = packed(embeds, positions, starts, plan.slots, deepstack)
    assert torch.equal(again, made), "the second run differs"


def time_thinker(bench: Bench) -> None:
    text = bench.config.thinker_config.text_config
    text.num_hidden_layers = bench.layers
    with torch.device("meta"):
        thinker = Thinker(text)
    time_prompts(bench, "thinker", draw_weights(thinker, BF16, DEVICE).model)
    given = bench.config.thinker_config
    media = MediaTokens(given.image_token_id, given.video_token_id, given.audio_token_id)
    accept_layer = min(bench.config.talker_config.accept_hidden_layer, bench.layers)
    runner = ThinkerModelRunner(thinker, media, [], accept_layer, NO_TOKENS, fused_rows=8, deepstack_layers=3)
    ids = torch.randint(100, 1000, (60,))
    positions = torch.arange(len(ids)).expand(3, -1)
    options = GenerationOptions(SAMPLING, SAMPLING, True, "ethan", True)
    question = ThinkerInput(Prompt(ids, positions, 0, options))
    time_first_step("thinker", runner, lambda: IncomingMessage("a", "new_request", question))


def time_talker(bench: Bench) -> None:
    talker = new_talker(bench.config)
    time_prompts(bench, "talker", talker.model)
    tokens = TalkerTokens.of(bench.config)
    runner = TalkerModelRunner(talker, tokens, fused_rows=8)
    reply = [tokens.im_start, tokens.assistant, 10]
    ids = torch.cat(
        (torch.tensor([tokens.im_start, tokens.user]), torch.randint(100, 1000, (55,)), torch.tensor(reply))
    )
    positions = torch.arange(len(ids)).expand(3, -1)
    prompt = TalkerPrompt(ids, positions, None, next(iter(tokens.speakers), "ethan"), SAMPLING, True)
    time_first_step("talker", runner, lambda: IncomingMessage("a", "stream_chunk", prompt))


def time_first_step(name: str, runner: Any, message: Callable[[], IncomingMessage]) -> None:
    """All that a runner does from a prompt's arrival to its first token (and frame)."""
    runner.allocate(64)

    def step() -> None:
        row = runner.open(message())
        runner.take_chunk(row, AnswerToken(7))
        row.pages = list(range(16))
        runner.step([row])
        assert row.error is None, row.error
        runner.emit(row)

    print(f"  {name}'s first step of 60 tokens, with all work on the host: {wall(step, 30):.2f} ms wall", flush=True)


def time_prompts(bench: Bench, name: str, decoder: Decoder) -> None:
    cache = decoder.new_cache(1024)
    every = [layer.mlp.experts for layer in decoder.layers if hasattr(layer.mlp, "experts")]
    all_experts = sum(weight.numel() for part in every for weight in part.parameters()) * 2
    whole = sum(weight.numel() for weight in decoder.layers.parameters()) * 2
    print(
        f"  floor: {bench.floor(whole):.1f} ms for all weights, {bench.floor(whole - all_experts):.1f} without experts"
    )
    eager = {lengths: prompt(decoder, lengths) for lengths in (1 * (20,), (60,), (120,), (250,), (60,) * 8)}
    for lengths, (embeds, positions, _, plan) in eager.items():
        run = finished(lambda a=embeds, b=positions, c=plan: decoder(a, b, cache, c))
        print(f"  {name} {lengths}, plain operations: {wall(run, 10):.1f} ms wall", flush=True)
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    start = time.monotonic()
    packed = FusedDecoder(decoder, 1, 1).packed_prompts(cache, 1, 3)
    packed.prepare()
    torch.cuda.synchronize()
    grown = torch.cuda.memory_allocated() - before[0], torch.cuda.memory_reserved() - before[1]
    print(
        f"  captured in {time.monotonic() - start:.1f} s; memory grew by {grown[0] / 2**20:.0f} MiB "
        f"(reserved {grown[1] / 2**20:.0f})"
    )
    for lengths, (embeds, positions, starts, plan) in eager.items():
        run = finished(lambda a=embeds, b=positions, s=starts, p=plan: packed(a, b, s, p.slots))
        size = next(size for size in PROMPT_SIZES if size >= len(embeds))
        graph = packed._captured[size].graph
        assert graph is not None
        run()
        print(f"  {name} {lengths}, packed: {wall(run, 30):.2f} ms wall, {events(graph.replay):.2f} on the device")
    print_kernels(packed._captured[64].graph, f"{name}'s prompts of 64 rows")


def prompt(decoder: Decoder, lengths: Sequence[int]) -> Any:
    tokens = sum(lengths)
    positions = torch.arange(tokens, device=DEVICE).float().expand(3, -1)
    kv_rows = [KVRow(range(16 * index, 16 * index + 16), 0, length) for index, length in enumerate(lengths)]
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    return randn(tokens, decoder.config.hidden), positions, starts, AttentionPlan.build(kv_rows, DEVICE)
