"""Whether engine "sglang" works on a GPU, without a server: the tiny thinker and talker, step by step, in every way.

    PYTHONPATH=.:backends python3 scripts/check_sglang_gpu.py [--gpu 0] [--published DIR]

Each way (stage, precision, with and without CUDA graphs) runs in a process of its own, for SGLang leaves its state all
over a process; one that fails prints its traceback, and the others go on. Answers are compared with those of engine
"torch" on the CPU in float32: float32 must give the same, bfloat16 may part where two tokens are nearly as likely.
Then steps a second are measured, and a profile shows where a step's time goes. With `--published`, a directory with a
published model's config.json and a tokenizer, stages of its size with random weights are timed, too.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import multiprocessing
import os
import random
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Lock
from pathlib import Path
from typing import Any

import torch
from tests.models import tiny_model

from omni_python.models.qwen3_omni import stages
from omni_python.models.qwen3_omni.payloads import CodecFrames, Prompt, TalkerPrompt, ThinkerInput
from omni_python.models.text.options import GenerationOptions
from omni_python.models.text.payloads import AnswerToken, ThinkerResult
from omni_python.proto.sampling import SamplingParams
from omni_python.proto.work import IncomingMessage

Messages = list[IncomingMessage]
TIMED_TOKENS = 120


@dataclass
class Way:
    """One process: `expected` is what each of `requests` must give, empty where nothing is compared."""

    title: str
    factory: str
    checkpoint: str
    options: dict[str, Any]
    graphs: bool = True
    requests: dict[str, Messages] = field(default_factory=dict)
    expected: dict[str, list[Any]] = field(default_factory=dict)
    batches: tuple[int, ...] = (1, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="the same on the CPU, in float32")
    parser.add_argument("--only", default="", help="run ways whose title contains this")
    parser.add_argument("--published", type=Path, help="a directory with config.json and a tokenizer")
    parser.add_argument("--limit", type=float, default=550, help="seconds after which what still runs is killed")
    parser.add_argument("--no-tiny", action="store_true", help="time the published sizes alone")
    args = parser.parse_args()
    deadline = time.monotonic() + args.limit
    for package in ("torch", "sglang", "sglang-kernel", "flashinfer-python", "triton", "transformers"):
        with suppress(importlib.metadata.PackageNotFoundError):
            print(f"{package} {importlib.metadata.version(package)}", end="; ")
    print(flush=True)
    ways: list[Way] = [] if args.no_tiny else list(tiny_ways(None if args.cpu else args.gpu))
    if args.published:
        ways += list(published_ways(str(args.published), args.gpu))
    context = multiprocessing.get_context("spawn")
    turn = context.Lock()
    processes = []
    for way in ways:
        if args.only in way.title:
            process = context.Process(target=run, args=(way, turn), name=way.title)
            process.start()
            processes.append(process)
    failed = []
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()
        if process.exitcode != 0:
            failed.append(process.name)
    print("all ways passed" if not failed else f"FAILED: {'; '.join(failed)}")
    sys.exit(bool(failed))


def tiny_ways(gpu: int | None) -> Iterator[Way]:
    checkpoint = str(tiny_model.checkpoint())
    thinker, talker = thinker_requests(), talker_requests()
    expected = {
        "create_thinker": reference("create_thinker", checkpoint, thinker),
        "create_talker": reference("create_talker", checkpoint, talker),
    }
    sizes = {"max_running": 16, "kv_tokens": 8192}
    ways = [("float32", False), ("float32", True), ("bfloat16", False), ("bfloat16", True)]
    for dtype, graphs in [("float32", False)] if gpu is None else ways:
        for factory, requests in (("create_thinker", thinker), ("create_talker", talker)):
            title = f"tiny {factory.removeprefix('create_')} {dtype} {'graphs' if graphs else 'eager'}"
            options = {**sizes, "gpu_id": gpu, "dtype": dtype}
            yield Way(title, factory, checkpoint, options, graphs, requests, expected[factory])


def published_ways(directory: str, gpu: int) -> Iterator[Way]:
    options = {"gpu_id": gpu, "load_format": "dummy", "max_running": 16, "kv_tokens": 16384}
    for stage in ("talker", "thinker"):
        yield Way(f"published {stage} bfloat16 graphs", f"create_{stage}", directory, options)


# ---- what is asked


def thinker_requests() -> dict[str, Messages]:
    """Text of several lengths, and, where Hugging Face's model can be loaded, media with deepstack features."""
    sampling = SamplingParams(max_tokens=24)
    made = {f"text {length}": thinker_request(f"text {length}", length, sampling) for length in (9, 30, 77, 150)}
    try:
        hf = tiny_model.hf_model(tiny_model.checkpoint())
        for seed, media in enumerate([("image",), ("audio",), ("image", "audio", "video")]):
            name = f"media {' '.join(media)}"
            given = tiny_model.conversation(hf, seed, media, thinker=sampling).input
            made[name] = [IncomingMessage(name, "new_request", given)]
    except Exception:
        print("no requests with media:\n" + traceback.format_exc(), flush=True)
    return made


def thinker_request(name: str, length: int, sampling: SamplingParams, vocabulary: int = 1500) -> Messages:
    rng = random.Random(length)
    ids = torch.tensor([rng.randrange(vocabulary) for _ in range(length)])
    positions = torch.arange(length).expand(3, -1).contiguous()
    options = GenerationOptions(sampling, SamplingParams(), False, "Ethan", True)
    return [IncomingMessage(name, "new_request", ThinkerInput(Prompt(ids, positions, 0, options)))]


def talker_requests() -> dict[str, Messages]:
    """Greedy ones and, with seeds, sampled ones."""
    greedy = SamplingParams(max_tokens=30, repetition_penalty=1.05)
    sampled = SamplingParams(max_tokens=30, repetition_penalty=1.05, temperature=0.9, top_k=50, seed=5)
    checkpoint = str(tiny_model.checkpoint())
    made = {f"greedy {n}": talker_request(f"greedy {n}", checkpoint, n, greedy) for n in range(4)}
    return made | {f"sampled {n}": talker_request(f"sampled {n}", checkpoint, n, sampled) for n in range(3)}


def talker_request(name: str, checkpoint: str, seed: int, sampling: SamplingParams) -> Messages:
    config = stages.model_config(checkpoint)
    rng = random.Random(seed)

    def words(count: int) -> list[int]:
        return [rng.randrange(1500) for _ in range(count)]

    start, end = config.im_start_token_id, config.im_end_token_id
    ids = [start, config.user_token_id, 198, *words(20), end, 198, start, config.assistant_token_id, 198]
    positions = torch.arange(len(ids)).expand(3, -1).contiguous()
    voice = next(iter(config.talker_config.speaker_id))
    prompt = TalkerPrompt(torch.tensor(ids), positions, None, voice, sampling, True)
    chunks = [prompt, *(AnswerToken(token) for token in words(12))]
    return [*(IncomingMessage(name, "stream_chunk", chunk) for chunk in chunks), IncomingMessage(name, "stream_done")]


def reference(factory: str, checkpoint: str, requests: Mapping[str, Messages]) -> dict[str, list[Any]]:
    return answers(getattr(stages, factory)(checkpoint, kv_tokens=8192), requests)


# ---- one way, in its process


def run(way: Way, turn: Lock) -> None:
    logging.basicConfig(level=logging.WARNING)
    warnings.simplefilter("ignore")
    status = 1
    torch.set_num_threads(1)
    from omni_python.sglang_engine import cpu_kernels, launch

    try:
        gpu = way.options["gpu_id"]
        cpu_kernels.prepare(gpu is not None)
        import sglang.srt.managers.scheduler  # noqa: F401, slow; all processes do it at once

        if not way.graphs:
            original = launch._arguments
            launch._arguments = lambda config: {**original(config), "disable_cuda_graph": True}
        with turn, torch.inference_mode():
            print(f"\n==== {way.title}", flush=True)
            try:
                check(way)
                status = 0
            finally:
                torch.cuda.empty_cache()
    except BaseException:
        print(f"{way.title} failed:\n{traceback.format_exc()}", flush=True)
    sys.stdout.flush()
    os._exit(status)  # SGLang's threads and communicators may wait for something


def check(way: Way) -> None:
    start = time.perf_counter()
    with torch.inference_mode(False):
        stage = getattr(stages, way.factory)(way.checkpoint, engine="sglang", **way.options)
    print(f"built in {time.perf_counter() - start:.1f} s{memory()}", flush=True)
    different = compare(answers(stage, way.requests), way.expected)
    gpu = way.options["gpu_id"] is not None
    for batch in way.batches:
        seconds, steps = timed(stage, way, batch)
        print(
            f"batch {batch}: {seconds * 1e3:.2f} ms a step, {batch / seconds:.0f} tokens/s ({steps} steps)", flush=True
        )
    if gpu:
        profile(stage, way, way.batches[-1])
    if different and way.options.get("dtype") == "float32":
        raise SystemExit(f"{different} of {len(way.expected)} answers differ")


def answers(stage: Any, requests: Mapping[str, Messages]) -> dict[str, list[Any]]:
    """All at once: tokens of the thinker, codec frames of the talker."""
    for messages in requests.values():
        for message in messages:
            stage.take(message)
    made: dict[str, list[Any]] = {name: [] for name in requests}
    left = set(requests)
    while left:
        worked = stage.work()
        for message in drain(stage):
            if message.type == "error":
                raise message.data
            if isinstance(message.data, CodecFrames):
                made[message.request_id] += message.data.codes.tolist()
            elif isinstance(message.data, ThinkerResult):
                made[message.request_id] = message.data.output_ids
            if message.type == "result":
                left.discard(message.request_id)
        if left and not worked:
            raise SystemExit(f"the stage has nothing to do, but {sorted(left)} have not ended")
    return made


def compare(made: Mapping[str, list[Any]], expected: Mapping[str, list[Any]]) -> int:
    different = 0
    for name, tokens in expected.items():
        same = made[name] == tokens
        until = next((n for n, pair in enumerate(zip(made[name], tokens, strict=False)) if pair[0] != pair[1]), None)
        print(f"{name}: {'equal' if same else f'DIFFERENT from {until} on of {len(tokens)}'}", flush=True)
        if not same:
            print(f"    here {made[name][:6]}\n    there {tokens[:6]}")
        different += not same
    return different


def timed(stage: Any, way: Way, batch: int) -> tuple[float, int]:
    """The median seconds of a step of `batch` rows that all decode; the first steps are left out."""
    seconds = []
    for step in decoding(stage, way, batch, TIMED_TOKENS):
        if step >= 20:
            seconds.append(step_seconds(stage))
        else:
            stage.work()
    drain(stage)
    return statistics.median(seconds), len(seconds)


def step_seconds(stage: Any) -> float:
    start = time.perf_counter()
    stage.work()
    return time.perf_counter() - start


def profile(stage: Any, way: Way, batch: int) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    profiler = torch.profiler.profile(activities=activities)
    for step in decoding(stage, way, batch, 60):
        if step == 20:
            profiler.start()
        stage.work()
        if step == 40:
            torch.cuda.synchronize()
            profiler.stop()
    drain(stage)
    averages = profiler.key_averages()
    print(f"20 steps of batch {batch}, by time on the GPU:")
    print(averages.table(sort_by="self_device_time_total", row_limit=14, max_name_column_width=70))
    print("by time on the CPU:")
    print(averages.table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=70), flush=True)


def decoding(stage: Any, way: Way, batch: int, tokens: int) -> Iterator[int]:
    """Steps in which `batch` requests decode, of which the caller computes each; then what is left of them."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.9, top_k=50, seed=1)
    if way.factory == "create_thinker":
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    for row in range(batch):
        name = f"timed {row}"
        if way.factory == "create_thinker":
            messages: Sequence[IncomingMessage] = thinker_request(name, 60 + row, sampling)
        else:
            messages = talker_request(name, way.checkpoint, row, sampling)
        for message in messages:
            stage.take(message)
    for _ in range(3):
        stage.work()
    raise_errors(stage)
    yield from range(tokens - 8)
    while stage.work():
        pass
    raise_errors(stage)


def raise_errors(stage: Any) -> None:
    for message in drain(stage):
        if message.type == "error":
            raise message.data


def drain(stage: Any) -> Iterator[Any]:
    while not stage.outbox.empty():
        yield stage.outbox.get()


def memory() -> str:
    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    return f", {torch.cuda.memory_reserved() / 2**30:.1f} GiB reserved, {free / 2**30:.1f} of {total / 2**30:.1f} free"


if __name__ == "__main__":
    main()
