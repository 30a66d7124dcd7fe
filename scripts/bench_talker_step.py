"""Times decode steps of the talker and the thinker at a published model's dimensions, with random weights.

A talker step is what its runner does for one frame: feedback and text, backbone, head, choice of the token, code
predictor, and all host work between two steps. The floor is what the step's weights take at the measured bandwidth.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_measures import DEVICE, copy_bandwidth, events, graph_of, wall

from omni_python.layers.decoder import Decoder
from omni_python.layers.fused_decoder import MAX_ROWS, FusedDecoder
from omni_python.layers.kv_cache import PAGE_TOKENS, AttentionPlan, KVRow
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.loading.dummy import draw_weights
from omni_python.models.qwen3_omni.talker import Talker
from omni_python.models.qwen3_omni.talker_prompt import TalkerTokens
from omni_python.models.qwen3_omni.talker_runner import TalkerModelRunner, TalkerRequest
from omni_python.models.qwen3_omni.thinker import Thinker
from omni_python.proto.sampling import SamplingParams

TALKER = {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.05, "max_tokens": 4096, "ignore_eos": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="config.json of the model")
    parser.add_argument("--part", choices=["talker", "thinker"], default="talker")
    parser.add_argument("--batches", default="1,8,16", help="comma-separated numbers of rows, at most 32 each")
    parser.add_argument("--context", type=int, default=512, help="cached tokens of each row")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--plain", action="store_true", help="time the plain operations too")
    parser.add_argument("--profile", type=Path, help="write the kernels' times here")
    options = parser.parse_args()
    options.batches = [int(rows) for rows in options.batches.split(",")]

    from transformers import Qwen3OmniMoeConfig

    config = Qwen3OmniMoeConfig.from_dict(json.loads(options.config.read_text("utf-8")))
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {bandwidth / 1e12:.2f} TB/s (read + write)")
    with torch.inference_mode():
        bench = bench_talker if options.part == "talker" else bench_thinker
        bench(config, options, bandwidth)


def bench_talker(config: Any, options: argparse.Namespace, bandwidth: float) -> None:
    talker = new_talker(config)
    tokens = TalkerTokens.of(config)
    predictor = talker.code_predictor
    per_step = (
        active_bytes(talker.model)
        + matrix_bytes(talker.codec_head)
        + (predictor.groups - 1) * matrix_bytes(predictor.model.layers)
        + matrix_bytes(predictor.lm_head)
    )
    print(f"floor at one row: {per_step / bandwidth * 1e3:.2f} ms ({per_step / 1e9:.2f} GB of weights)")
    if options.plain:
        for rows in options.batches:
            runner = TalkerModelRunner(talker, tokens)
            step = prepared(runner, rows, options.context, options.steps + 10)
            print(f"plain operations, {rows} rows: {wall(step, 10):.2f} ms a step", flush=True)
            del runner, step
    check(talker.model, options.context, "talker")
    start = time.monotonic()
    runner = TalkerModelRunner(talker, tokens, fused_rows=max(options.batches))
    runner.allocate(pages_for(max(options.batches), options.context, options.steps + 80))
    print(f"compiled and captured in {time.monotonic() - start:.0f} s", flush=True)
    decode = runner._decode
    assert decode is not None
    for rows in options.batches:
        step = prepared(runner, rows, options.context, options.steps + 10, allocated=True)
        total = wall(step, options.steps)
        size = decode._step._size(1 << (rows - 1).bit_length())
        assert size.graph is not None
        device = events(size.graph.replay)
        parts = talker_parts(decode, predictor, rows, options.context)
        print(f"fused, {rows} rows: {total:.3f} ms a step, of it {device:.3f} on the device; {parts}", flush=True)
        if options.profile:
            profile(size.graph.replay, options.profile.with_suffix(f".talker{rows}.txt"))


def talker_parts(decode: Any, predictor: Any, rows: int, context: int) -> str:
    """Device times of the step's pieces, each as a graph of its own."""
    size = 1 << (rows - 1).bit_length()
    hidden = predictor.model.config.hidden
    x = torch.randn(size, hidden, device=DEVICE, dtype=torch.bfloat16)
    where = where_of(decode._tables.tensor, size, context, decode._model)
    sampled = torch.ones(size, dtype=torch.bool, device=DEVICE)
    uniforms = torch.rand(size, predictor.groups - 1, device=DEVICE)
    backbone = graph_of(lambda: decode.decoder(x.clone(), decode._cache, where))
    frame = graph_of(lambda: predictor.fused(x, x, sampled, uniforms))
    return f"backbone {events(backbone):.3f}, code predictor {events(frame):.3f}"


def bench_thinker(config: Any, options: argparse.Namespace, bandwidth: float) -> None:
    from omni_python.models.qwen3_omni.thinker_decode import ThinkerDecode

    with torch.device("meta"):
        thinker = Thinker(config.thinker_config.text_config)
    thinker = draw_weights(thinker, torch.bfloat16, DEVICE)
    per_step = active_bytes(thinker.model) + matrix_bytes(thinker.lm_head)
    print(f"floor at one row: {per_step / bandwidth * 1e3:.2f} ms ({per_step / 1e9:.2f} GB of weights)")
    most = max(options.batches)
    cache = thinker.model.new_cache(pages_for(most, options.context, options.steps + 80) + 1)
    check(thinker.model, options.context, "thinker", reference=False)
    start = time.monotonic()
    decode = ThinkerDecode(thinker, cache, most)
    decode.prepare()
    print(f"compiled and captured in {time.monotonic() - start:.0f} s", flush=True)
    pages = pages_for(1, options.context, options.steps + 80)
    slots = [decode.tables.admit(range(row * pages, (row + 1) * pages)) for row in range(most)]
    for rows in options.batches:
        past = [options.context] * rows

        def step(rows: int = rows, past: list[int] = past) -> None:
            decode.step(slots[:rows], past, [5] * rows, past).argmax(-1).tolist()
            past[:] = [length + 1 for length in past]

        total = wall(step, options.steps)
        size = decode._step._size(1 << (rows - 1).bit_length())
        assert size.graph is not None
        device = events(size.graph.replay)
        print(f"fused, {rows} rows: {total:.3f} ms a step with argmax, of it {device:.3f} on the device", flush=True)
        if options.profile:
            profile(size.graph.replay, options.profile.with_suffix(f".thinker{rows}.txt"))


def new_talker(config: Any) -> Talker:
    with torch.device("meta"):
        talker = Talker(config.talker_config, config.thinker_config.text_config.vocab_size)
    return draw_weights(talker, torch.bfloat16, DEVICE)


def prepared(
    runner: TalkerModelRunner, rows: int, context: int, steps: int, allocated: bool = False
) -> Callable[[], None]:
    """A step of `rows` requests that have `context` cached tokens, as the scheduler makes it."""
    pages = pages_for(1, context, steps + 70)
    if not allocated:
        runner.allocate(rows * pages)
    for layer in range(runner._backbone.config.layers):
        for cached in runner.cache.layer(layer):
            cached.normal_()
    requests = []
    for row in range(rows):
        request = TalkerRequest(
            request_id=str(row),
            sampler=TokenSampler(SamplingParams(seed=row, **TALKER)),  # type: ignore[arg-type]
            prompt_len=context,
            user=None,
            speaker=0,
            stream=True,
            answer=[5] * 4096,
            generated=[7],
            computed=context,
            pages=list(range(row * pages, (row + 1) * pages)),
            feedback=torch.randn(runner._backbone.config.hidden, device=DEVICE, dtype=torch.bfloat16),
        )
        requests.append(request)

    def step() -> None:
        runner.step(requests)
        for request in requests:
            assert request.error is None, request.error
            runner.emit(request)

    if allocated:
        decode = runner._decode
        assert decode is not None
        decode._frames._free = list(range(len(decode._tables.tensor) - 1))
    return step


def check(decoder: Decoder, context: int, name: str, reference: bool = True) -> None:
    """Print how far a fused step is from the plain one, and, with `reference`, both from float32."""
    from omni_python.layers.kernels.attention import Where

    rows, pages = 3, pages_for(1, context, 16)
    caches = [decoder.new_cache(rows * pages) for _ in range(2)]
    for layer in range(decoder.config.layers):
        for one, other in zip(caches[0].layer(layer), caches[1].layer(layer), strict=True):
            one.normal_()
            other.copy_(one)
    past = [context, 0, context // 3]
    x = torch.randn(rows, decoder.config.hidden, device=DEVICE, dtype=torch.bfloat16)
    positions = torch.tensor(past, device=DEVICE, dtype=torch.float32).expand(3, -1)
    table = torch.arange(rows * pages, device=DEVICE, dtype=torch.int32).view(rows, pages)
    plan = AttentionPlan.build([KVRow(table[row].tolist(), past[row], 1) for row in range(rows)], DEVICE)
    plain, _ = decoder(x, positions, caches[0], plan)
    expected = plain.float()
    if reference:
        wide = caches[0].layer
        decoder.float()
        cache = decoder.new_cache(rows * pages)
        for layer in range(decoder.config.layers):
            for one, other in zip(cache.layer(layer), wide(layer), strict=True):
                one.copy_(other)
        expected, _ = decoder(x.float(), positions, cache, plan)
        decoder.to(torch.bfloat16)
    fused = FusedDecoder(decoder, MAX_ROWS, 8)
    angles = decoder.rotary.angles(positions)
    row = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    where = Where(table, row, positions[0].to(torch.int32), angles.cos(), angles.sin())
    made = []
    for parts in ([0, 1, 2], [0], [1], [2]):
        at = torch.tensor(parts, device=DEVICE)
        part = Where(table, row[at], where.past[at], where.cos[at].contiguous(), where.sin[at].contiguous())
        made.append(decoder.norm(fused(x[at].clone(), caches[1], part)).float())
    alone = torch.cat(made[1:])
    kind = "float32" if reference else "plain bfloat16"
    print(
        f"{name}: relative distance to {kind}: plain {distance(plain.float(), expected)}, "
        f"fused {distance(made[0], expected)}, row by row {distance(alone, expected)}",
        flush=True,
    )


def distance(got: torch.Tensor, expected: torch.Tensor) -> str:
    each = (got - expected).norm(dim=-1) / expected.norm(dim=-1)
    return "/".join(f"{value:.4f}" for value in each.tolist())


def where_of(table: torch.Tensor, rows: int, context: int, decoder: Decoder) -> Any:
    from omni_python.layers.kernels.attention import Where

    angles = decoder.rotary.angles(torch.full((3, rows), float(context), device=DEVICE))
    row = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    return Where(table, row, torch.full_like(row, context), angles.cos(), angles.sin())


def pages_for(rows: int, context: int, steps: int) -> int:
    return rows * -(-(context + steps) // PAGE_TOKENS)


def active_bytes(decoder: Decoder) -> int:
    """Weights that one row's step reads: of the experts only the chosen ones."""
    config = decoder.config
    experts = [layer.mlp.experts for layer in decoder.layers if hasattr(layer.mlp, "experts")]
    chosen = sum(matrix_bytes(part) for part in experts) * config.experts_per_token // max(config.experts, 1)
    return matrix_bytes(decoder.layers) - sum(matrix_bytes(part) for part in experts) + chosen


def matrix_bytes(module: torch.nn.Module) -> int:
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())


def profile(run: Callable[[], Any], path: Path) -> None:
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(3):
            run()
        torch.cuda.synchronize()
    path.write_text(recorded.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=60))


if __name__ == "__main__":
    gc.collect()
    main()
