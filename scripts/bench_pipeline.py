"""What a client waits for: the whole Qwen3-Omni pipeline inside a real tritonserver, asked over gRPC from this host.

    scripts/bench_pipeline [--model-path DIR] [--gpu N] [--published-size] [--concurrency 1,8,16] [--json FILE]

Every request is a spoken answer, streamed: a prompt of about `--prompt-tokens`, `--text-tokens` of text and `--frames`
frames of speech (80 ms each), with the ends of sequence ignored so that all work is the same. `--published-size` takes
Qwen3-Omni-30B-A3B's dimensions (a config.json in DIR) with random weights drawn on the GPU: a model's speed does not
depend on what its weights say, the routing of its experts aside.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from omni_python.bench.dataset import Question
from omni_python.bench.generator import LoadGenerator
from omni_python.bench.load import ClosedLoop, Plan
from omni_python.bench.measure import measure
from omni_python.bench.record import RequestRecord
from omni_python.bench.summary import Summary
from omni_python.bench.tables import print_tables
from omni_python.client import OmniClient
from omni_python.config.compile import compile_pipeline
from omni_python.config.memory import MEMORY_FRACTION
from omni_python.config.schema import PipelineConfig
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

SAMPLES_PER_FRAME, SAMPLE_RATE = 1920, 24_000
SEEDS = 64
PATIENCE_S = 600.0


def pipeline(model_path: Path, gpu: int | None, dummy: bool, overrides: dict[str, dict[str, Any]]) -> PipelineConfig:
    """The speech pipeline, with the stages that declare a share of a GPU's memory on that GPU, if asked for."""
    config = Qwen3OmniSpeechPipelineConfig(model_path=str(model_path))
    stages = []
    for stage in config.stages:
        update: dict[str, Any] = {"factory_args": {**stage.factory_args, **overrides.get(stage.name, {})}}
        if gpu is not None and MEMORY_FRACTION in stage.factory_args:
            update["gpu"] = gpu
            if dummy:
                update["factory_args"]["load_format"] = "dummy"
        stages.append(stage.model_copy(update=update))
    return Qwen3OmniSpeechPipelineConfig(model_path=str(model_path), stages=stages)


def questions(args: argparse.Namespace) -> list[Question]:
    """Requests that differ in the talker's seed alone."""
    text = "word " * args.prompt_tokens
    found = []
    for seed in range(SEEDS):
        talker = {"max_tokens": args.frames + 1, "ignore_eos": True, "seed": seed}
        sampling = {"max_tokens": args.text_tokens, "ignore_eos": True, "talker": talker}
        found.append(Question(text, {"sampling": sampling}))
    return found


def measured(server: TritonServer, args: argparse.Namespace) -> Iterator[Summary]:
    """The figures of each concurrency; the first requests warm the server up for all."""

    def check(record: RequestRecord) -> None:
        if record.error:
            raise SystemExit(f"a request failed: {record.message}")
        if round(record.audio_s * SAMPLE_RATE) < (args.frames - 1) * SAMPLES_PER_FRAME:
            raise SystemExit(
                f"a request answered with {record.audio_s:.2f} s of speech, {args.frames} frames were asked"
            )

    processes = max(1, (os.cpu_count() or 1) // 8)
    with LoadGenerator(server.grpc_url, "qwen3_omni", questions(args), processes) as generator:
        start = time.perf_counter()
        if args.warm_up:
            measure(generator, ClosedLoop(1), Plan(requests=args.warm_up, warm_up=0, timeout=PATIENCE_S), (), check)
            print(f"warm-up of {args.warm_up} requests: {time.perf_counter() - start:.1f} s", flush=True)
        for concurrency in args.concurrency:
            plan = Plan(requests=max(args.requests, 6 * concurrency), timeout=PATIENCE_S)
            summary = measure(generator, ClosedLoop(concurrency), plan, (), check)
            print(msgspec.json.encode(summary).decode(), flush=True)
            yield summary


def leave_behind(server: TritonServer, args: argparse.Namespace) -> None:
    """Print what many requests, a fifth of them left by their clients, change in the memory that is held."""
    text = "word " * args.prompt_tokens

    def one(seed: int) -> None:
        rng = random.Random(seed)
        sampling = {"max_tokens": args.text_tokens, "ignore_eos": True, "talker": {"max_tokens": args.frames + 1}}
        events = client.stream(text, sampling=sampling)
        leave_after = rng.randrange(1, 12) if rng.random() < 0.2 else 10**6
        for number, _ in enumerate(events):
            if number >= leave_after:
                events.close()
                break

    with OmniClient(server.grpc_url, "qwen3_omni") as client, ThreadPoolExecutor(16) as pool:
        for share in (args.leak_check // 5, args.leak_check):
            list(pool.map(one, range(share)))
            time.sleep(2)
            print(f"after {share} more requests, a fifth aborted: {gpu_memory()}; {held(server)}", flush=True)


def held(server: TritonServer) -> str:
    """Requests by state, and every gauge of ours that is not zero."""
    with urllib.request.urlopen(f"http://{server.host}:{server.metrics_port}/metrics", timeout=10) as reply:
        lines = [line for line in reply.read().decode().splitlines() if line.startswith("omni_")]
    totals = [line for line in lines if line.startswith("omni_requests_total")]
    return "; ".join([*totals, *(line for line in lines if "_total" not in line and not line.endswith(" 0"))])


def gpu_memory() -> str:
    command = ["nvidia-smi", "--query-gpu=name,memory.used,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no GPU"


def value_of(text: str) -> Any:
    """JSON where it is that, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path, default=Path("checkpoints/tiny-qwen3-omni"))
    parser.add_argument("--gpu", type=int, help="index of the GPU; without it everything runs on the CPU")
    parser.add_argument("--published-size", action="store_true", help="random weights in the sizes of config.json")
    parser.add_argument("--concurrency", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 16])
    parser.add_argument("--requests", type=int, default=16, help="at least so many at each concurrency")
    parser.add_argument("--prompt-tokens", type=int, default=45, help="words of the prompt; the template adds about 15")
    parser.add_argument("--text-tokens", type=int, default=24)
    parser.add_argument("--frames", type=int, default=70)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.ARGUMENT=VALUE", help="a factory argument")
    parser.add_argument("--leak-check", type=int, default=0, metavar="N", help="then N requests, a fifth aborted")
    parser.add_argument("--start-timeout", type=float, default=600)
    parser.add_argument("--server-log", type=Path)
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    overrides: dict[str, dict[str, Any]] = {}
    for setting in args.set:
        where, _, value = setting.partition("=")
        stage, _, argument = where.partition(".")
        overrides.setdefault(stage, {})[argument] = value_of(value)
    config = pipeline(args.model_path.resolve(), args.gpu, args.published_size, overrides)
    with tempfile.TemporaryDirectory() as folder:
        compile_pipeline(config, Path(folder))
        start = time.perf_counter()
        options = ServerOptions(model_repository=Path(folder))
        with TritonServer.start(options, log=args.server_log, timeout_s=args.start_timeout) as server:
            print(f"ready after {time.perf_counter() - start:.1f} s; {gpu_memory()}", flush=True)
            summaries = list(measured(server, args))
            print_tables(summaries, Console())
            if args.leak_check:
                leave_behind(server, args)
            print(gpu_memory(), flush=True)
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(summaries), indent=1))


if __name__ == "__main__":
    main()
