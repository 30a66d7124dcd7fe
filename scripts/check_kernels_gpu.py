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
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu_measures import DEVICE, Bench, copy_bandwidth, error, events, expect, graph_of, randn
from gpu_prompts import check_layers, time_talker, time_thinker
from gpu_vocoder import check_streams, check_vocoder

from omni_python.layers.kernels import attention, grouped_moe, linear, moe, prompt_attention

EPS = 1e-6


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
