"""Checks and times, on a GPU, what stages compute there: kernels, packed prompts and the vocoder's windows.

    PYTHONPATH=backends python3 scripts/check_kernels_gpu.py CONFIG.json [--only NAME,...] [--layers 48]

Runs to its end whatever fails, prints every traceback, and says at last what failed. Weights are random ones of the
model's dimensions. Times are medians of 50 on the device, unless "wall" is said. The floor is what the weights take
that some row needs, at the bandwidth of a copy.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bench_talker_step import DEVICE, copy_bandwidth, events, graph_of, new_talker, wall

from omni_python.layers.decoder import Decoder, DecoderConfig, Deepstack
from omni_python.layers.fused_decoder import FusedDecoder
from omni_python.layers.kernels import attention, grouped_moe, linear, moe, prompt_attention
from omni_python.layers.kv_cache import AttentionPlan, KVRow
from omni_python.layers.packed_prompts import PROMPT_SIZES
from omni_python.models.loading.dummy import draw_weights
from omni_python.models.media.placeholders import MediaTokens
from omni_python.models.qwen3_omni.code2wav import load_code2wav
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
from omni_python.scheduling.code2wav import Code2WavScheduler

EPS = 1e-6
SAMPLING = SamplingParams(temperature=0.9, top_k=50, max_tokens=64, ignore_eos=True, seed=1)
NO_TOKENS: Any = None  # read only for stop strings
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Bench:
    config: Any
    config_path: Path
    layers: int
    bandwidth: float

    def floor(self, weights: int) -> float:
        """Milliseconds that reading `weights` bytes takes."""
        return weights / self.bandwidth * 1e3


def randn(*shape: int, scale: float = 1.0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def expect(name: str, value: float, most: float) -> None:
    print(f"  {name}: relative error {value:.2e}", flush=True)
    if not value < most:
        raise AssertionError(f"{name}: {value} is not below {most}")


def check_linear(bench: Bench) -> None:
    """The products of a layer of the thinker, and two of S2-Pro's, whose sizes are no powers of two."""
    for out, inner in ((5120, 2048), (2048, 4096), (129, 2048), (128, 1024), (6144, 2560), (2560, 9728)):
        weight = randn(out, inner, scale=inner**-0.5)
        for rows in (1, 4, 8, 16, 32, 64, 128, 512):
            x = randn(rows, inner)
            expected = F.rms_norm(x.double(), (inner,), eps=EPS) @ weight.double().T
            value = error(linear.linear(x, weight, normed=True, eps=EPS, dtype=torch.float32), expected)
            ours = graph_of(lambda x=x, weight=weight: linear.linear(x, weight, normed=True, eps=EPS))
            theirs = graph_of(
                lambda x=x, weight=weight, inner=inner: F.linear(F.rms_norm(x, (inner,), eps=EPS), weight)
            )
            times = f"ours {events(ours) * 1e3:.1f} us, norm and cuBLAS {events(theirs) * 1e3:.1f} us"
            print(f"  [{out}, {inner}] {rows} rows: {times}")
            expect(f"[{out}, {inner}] {rows} rows", value, 1e-2)


def check_prompt_attention(bench: Bench) -> None:
    """Packed prompts of several lengths, at the thinker's and the talker's sizes."""
    for heads in (attention.Heads(32, 4, 128), attention.Heads(16, 2, 128)):
        for lengths in ([1], [60], [13, 1, 50], [128], [60] * 8, [512]):
            tokens = sum(lengths)
            qkv = randn(tokens, (heads.heads + 2 * heads.kv_heads) * heads.dim)
            q_norm, k_norm = randn(heads.dim), randn(heads.dim)
            angles = torch.rand(tokens, heads.dim // 2, device=DEVICE) * 500
            starts = [sum(lengths[:index]) for index in range(len(lengths))]
            first = torch.tensor([s for s, n in zip(starts, lengths, strict=True) for _ in range(n)], device=DEVICE)
            slots = torch.randperm(2 * tokens, device=DEVICE)[:tokens]
            keys, values = (randn(2 * tokens, heads.kv_heads, heads.dim) for _ in range(2))
            turns = (angles.cos(), angles.sin())

            run = partial(
                prompt_attention.attend_prompts,
                *(qkv, q_norm, k_norm, EPS, heads, keys, values, first.int(), slots, turns),
            )
            out = run()
            sizes = [size * heads.dim for size in (heads.heads, heads.kv_heads, heads.kv_heads)]
            q, k, v = (part.reshape(tokens, -1, heads.dim) for part in qkv.double().split(sizes, dim=1))
            q, k = (
                turned(F.rms_norm(part, (heads.dim,), gain.double(), EPS), angles.double()[:, None])
                for part, gain in ((q, q_norm), (k, k_norm))
            )
            at = torch.arange(tokens, device=DEVICE)
            mask = (at[None] <= at[:, None]) & (at[None] >= first[:, None])
            k, v = k.repeat_interleave(heads.shared, 1), v.repeat_interleave(heads.shared, 1)
            q, wide_k, v = (part.transpose(0, 1) for part in (q, k, v))
            expected = F.scaled_dot_product_attention(q, wide_k, v, attn_mask=mask)
            print(f"  {heads.heads} heads, {lengths}: {events(graph_of(run)) * 1e3:.1f} us")
            expect("attended", error(out, expected.transpose(0, 1).flatten(1)), 2e-2)
            expect("keys", error(keys[slots].repeat_interleave(heads.shared, 1), k), 1e-2)
            expect("values", error(values[slots].repeat_interleave(heads.shared, 1), v.transpose(0, 1)), 1e-2)


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()), dim=-1)


def thinker_experts() -> moe.MoEWeights:
    return experts(2048, 768, 128, 8, 0)


def experts(hidden: int, size: int, count: int, top_k: int, always: int) -> moe.MoEWeights:
    return moe.MoEWeights(
        router=randn(count + bool(always), hidden, scale=hidden**-0.5),
        gate_up=randn(count + always, 2 * size, hidden, scale=hidden**-0.5),
        down=randn(count + always, hidden, size, scale=size**-0.5),
        top_k=top_k,
        always=always,
        normalise=True,
    )


def mixed(x: torch.Tensor, weights: moe.MoEWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """What is added to the rows of `x`, in float64, and which rows chose clearly; others may fall to either side."""
    normed = F.rms_norm(x.double(), x.shape[1:], eps=EPS)
    logits = normed @ weights.router.double().T
    count = len(weights.gate_up) - weights.always
    likelihood = logits[:, :count].softmax(-1)
    shares, chosen = likelihood.topk(weights.top_k + 1, dim=-1)
    clear = (shares[:, -2] - shares[:, -1]) > 2e-3 * shares[:, -2]
    shares, chosen = shares[:, :-1], chosen[:, :-1]
    shares = shares / shares.sum(-1, keepdim=True)
    added = torch.zeros_like(normed)
    for expert in range(len(weights.gate_up)):
        share = torch.where(chosen == expert, shares, 0.0).sum(-1) if expert < count else logits[:, -1].sigmoid()
        rows = share.nonzero()[:, 0]
        gate, up = (normed[rows] @ weights.gate_up[expert].double().T).chunk(2, dim=1)
        added[rows] += share[rows, None] * ((F.silu(gate) * up) @ weights.down[expert].double().T)
    return added, clear


def check_experts(bench: Bench) -> None:
    """The grouped mixture against float64 and beside the one for few rows."""
    for name, weights in (("thinker", thinker_experts()), ("talker", experts(1024, 384, 128, 6, 2))):
        count, _, hidden = weights.gate_up.shape
        per_expert = 3 * hidden * weights.down.shape[2] * 2
        for rows in (1, 5, 8, 16, 32, 60, 64, 128, 256, 512):
            x = randn(rows, hidden, scale=0.05)
            added, clear = mixed(x, weights)
            after = grouped_moe.mix_grouped(x.clone(), EPS, weights)
            groups = grouped_moe.group(linear.linear(x, weights.router, normed=True, dtype=torch.float32), weights)
            active = int((groups.counts > 0).sum())
            work = x.clone()  # to which each call adds
            grouped = events(graph_of(lambda x=work, weights=weights: grouped_moe.mix_grouped(x, EPS, weights)))
            times = f"grouped {grouped * 1e3:.0f} us"
            if rows <= 32:
                few = events(graph_of(lambda x=work, weights=weights: moe.mix(x, EPS, weights)))
                times += f", few rows' {few * 1e3:.0f} us"
            floor = bench.floor(active * per_expert) * 1e3
            print(f"  {name}, {rows} rows, {active} of {count} experts: {times}, floor {floor:.0f} us")
            if rows > 1 and not clear.any():
                continue
            keep = clear if clear.any() else torch.ones_like(clear)
            expect(f"{name} {rows} rows", error((after.double() - x.double())[keep], added[keep]), 4e-2)


def sweep_experts(bench: Bench) -> None:
    """Which tiles are fastest; the constants of grouped_moe are set by this."""
    for name, weights, sizes in (
        ("thinker", thinker_experts(), (64, 512)),
        ("talker", experts(1024, 384, 128, 6, 2), (64,)),
    ):
        for rows in sizes:
            x = randn(rows, weights.gate_up.shape[2], scale=0.05)
            for which in ("GATE_UP", "DOWN"):
                kept = getattr(grouped_moe, which)
                found = []
                for outputs, inputs, stages, warps in itertools.product((64, 128), (64, 128), (3, 4), (4, 8)):
                    tiles = grouped_moe.Tiles(outputs, inputs, stages, warps)
                    setattr(grouped_moe, which, tiles)
                    try:
                        taken = events(
                            graph_of(lambda x=x, weights=weights: grouped_moe.mix_grouped(x, EPS, weights)), 15
                        )
                        found.append((taken * 1e3, tiles))
                    except Exception as problem:  # too much shared memory, mostly
                        found.append((float("inf"), tiles))
                        if "shared memory" not in str(problem):
                            print("   ", tiles, str(problem)[:200])
                setattr(grouped_moe, which, kept)
                found.sort(key=lambda pair: pair[0])
                for taken, tiles in [*found[:4], *(pair for pair in found if pair[1] == kept)]:
                    print(f"  {name}, {rows} rows, {which}: {taken:.0f} us with {tiles}", flush=True)


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
    profile(packed._captured[64].graph, f"{name}'s prompts of 64 rows")


def prompt(decoder: Decoder, lengths: Sequence[int]) -> Any:
    tokens = sum(lengths)
    positions = torch.arange(tokens, device=DEVICE).float().expand(3, -1)
    kv_rows = [KVRow(range(16 * index, 16 * index + 16), 0, length) for index, length in enumerate(lengths)]
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    return randn(tokens, decoder.config.hidden), positions, starts, AttentionPlan.build(kv_rows, DEVICE)


def finished(run: Callable[[], Any]) -> Callable[[], None]:
    def whole() -> None:
        run()
        torch.cuda.synchronize()

    return whole


def profile(graph: Any, name: str) -> None:
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as recorded:
        graph.replay()
        torch.cuda.synchronize()
    print(f"  kernels of the graph of {name}:")
    kernels = sorted(recorded.key_averages(), key=lambda each: -each.device_time_total)
    for kernel in kernels[:14]:
        print(f"    {kernel.device_time_total / 1e3:8.3f} ms {kernel.count:5d} x {kernel.key[:90]}")


def check_vocoder(bench: Bench) -> None:
    vocoder = load_code2wav(bench.config_path.parent, bench.config, BF16, DEVICE, "dummy")
    scheduler = Code2WavScheduler(vocoder, first_chunk_frames=4)
    windows = [(0, 2), (0, 4), (4, 14), (25, 31), (25, 35)]
    given = {
        (context, frames, batch): torch.randint(0, 1024, (batch, vocoder.groups, frames))
        for context, frames in windows
        for batch in (1, 3, 8)
    }
    eager = {}
    for (context, frames, batch), codes in given.items():
        eager[context, frames, batch] = vocoder.decode(codes, context)
        whole = vocoder._module(codes.to(DEVICE))[:, 0].float().cpu()[:, -eager[context, frames, batch].shape[1] :]
        taken = wall(partial(vocoder.decode, codes, context), 10)
        print(f"  context {context}, frames {frames}, batch {batch}, eager: {taken:.2f} ms wall", flush=True)
        expect("difference from the whole module", error(eager[context, frames, batch], whole), 1e-1)
    before = torch.cuda.memory_reserved()
    start = time.monotonic()
    vocoder.prepare(scheduler.windows, 8)
    grown = (torch.cuda.memory_reserved() - before) / 2**20
    print(
        f"  windows {scheduler.windows} captured in {time.monotonic() - start:.1f} s; "
        f"reserved memory grew by {grown:.0f} MiB"
    )
    for (context, frames, batch), codes in given.items():
        made = vocoder.decode(codes, context)
        taken = wall(partial(vocoder.decode, codes, context), 30)
        print(f"  context {context}, frames {frames}, batch {batch}, captured: {taken:.2f} ms wall")
        expect("difference from eager", error(made, eager[context, frames, batch]), 1e-1)
    for context, frames, batch in ((0, 4, 1), (25, 35, 1), (25, 35, 8)):
        graph = vocoder._graphed._captured[torch.Size((batch, vocoder.groups, frames)), ("context", context)].graph
        print(f"  {batch} windows of {frames} frames: {events(graph.replay):.2f} ms on the device")
        profile(graph, f"the vocoder for {batch} windows of {frames} frames")


def check_streams(bench: Bench) -> None:
    """Is a short graph held up by a long one on another stream of lower priority?"""
    a, b = randn(8192, 8192), randn(64, 2048)
    long, short = graph_of(lambda: [a @ a for _ in range(20)]), graph_of(lambda: [b @ b.T for _ in range(100)])
    low, high = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)

    def both() -> None:
        with torch.cuda.stream(low):
            long()
        with torch.cuda.stream(high):
            short()
            high.synchronize()

    print(f"  short alone {wall(finished(short), 20):.2f} ms, long alone {wall(finished(long), 20):.2f} ms")
    print(f"  short beside long {wall(both, 20):.2f} ms")
    torch.cuda.synchronize()


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "linear": check_linear,
    "prompt-attention": check_prompt_attention,
    "experts": check_experts,
    "layers": check_layers,
    "vocoder": check_vocoder,
    "streams": check_streams,
    "talker": time_talker,
    "thinker": time_thinker,
    "sweep": sweep_experts,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="config.json of the model")
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(SECTIONS)}")
    parser.add_argument("--layers", type=int, default=48, help="of the thinker's timed prompts")
    options = parser.parse_args()

    from transformers import Qwen3OmniMoeConfig

    config = Qwen3OmniMoeConfig.from_dict(json.loads(options.config.read_text("utf-8")))
    bench = Bench(config, options.config, options.layers, copy_bandwidth())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {bench.bandwidth / 1e12:.2f} TB/s")
    failed = []
    for name in options.only.split(",") if options.only else SECTIONS:
        print(f"== {name}", flush=True)
        start = time.monotonic()
        try:
            with torch.inference_mode():
                SECTIONS[name](bench)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"   {time.monotonic() - start:.0f} s", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
