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
import random
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_python.client import AudioChunk, Finished, OmniClient, TextDelta
from omni_python.config.compile import compile_pipeline
from omni_python.config.memory import MEMORY_FRACTION
from omni_python.config.schema import PipelineConfig
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.serve.triton_server import ServerOptions, TritonServer

SAMPLES_PER_FRAME, SAMPLE_RATE = 1920, 24_000


@dataclass
class Timing:
    """Seconds of one request, from sending it."""

    first_text: float
    first_audio: float
    total: float
    audio_seconds: float
    underrun: float
    """Silence that a player would have heard, starting to play with the first chunk."""


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


def ask(client: OmniClient, text: str, args: argparse.Namespace, seed: int) -> Timing:
    talker = {"max_tokens": args.frames + 1, "ignore_eos": True, "seed": seed}
    sampling = {"max_tokens": args.text_tokens, "ignore_eos": True, "talker": talker}
    start = time.perf_counter()
    first_text = first_audio = played_until = underrun = 0.0
    samples = 0
    for event in client.stream(text, sampling=sampling):
        now = time.perf_counter() - start
        match event:
            case TextDelta():
                first_text = first_text or now
            case AudioChunk(chunk, _):
                if not first_audio:
                    first_audio = played_until = now
                underrun += max(0.0, now - played_until)
                played_until = max(now, played_until) + len(chunk) / SAMPLE_RATE
                samples += len(chunk)
            case Finished():
                pass
    if samples < (args.frames - 1) * SAMPLES_PER_FRAME:
        raise SystemExit(f"a request answered with {samples} samples, {args.frames} frames were asked for")
    return Timing(first_text, first_audio, time.perf_counter() - start, samples / SAMPLE_RATE, underrun)


def measure(server: TritonServer, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    text = "word " * args.prompt_tokens
    with OmniClient(server.grpc_url, "qwen3_omni") as client:
        start = time.perf_counter()
        for _ in range(args.warm_up):
            ask(client, text, args, 0)
        print(f"warm-up of {args.warm_up} requests: {time.perf_counter() - start:.1f} s", flush=True)
        for concurrency in args.concurrency:
            total = max(args.requests, 6 * concurrency)
            with ThreadPoolExecutor(concurrency) as pool:  # a first round for every shape that is compiled on first use
                list(pool.map(lambda seed: ask(client, text, args, seed), range(2 * concurrency)))
                start = time.perf_counter()
                timings = list(pool.map(lambda seed: ask(client, text, args, seed), range(total)))
                seconds = time.perf_counter() - start
            row = {
                "concurrency": concurrency,
                "requests": total,
                "first_text_ms": median(timings, "first_text"),
                "first_audio_ms": median(timings, "first_audio"),
                "first_audio_p95_ms": percentile(timings, "first_audio", 0.95),
                "total_ms": median(timings, "total"),
                "real_time_factor": round(statistics.median(t.total / t.audio_seconds for t in timings), 4),
                "underrun_ms": median(timings, "underrun"),
                "requests_per_s": round(total / seconds, 2),
            }
            print(json.dumps(row), flush=True)
            yield row


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


def median(timings: list[Timing], figure: str) -> float:
    return round(statistics.median(getattr(timing, figure) for timing in timings) * 1e3, 1)


def percentile(timings: list[Timing], figure: str, share: float) -> float:
    values = sorted(getattr(timing, figure) for timing in timings)
    return round(values[min(len(values) - 1, int(share * len(values)))] * 1e3, 1)


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
    parser.add_argument("--json", type=Path, help="write all rows here")
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
            rows = list(measure(server, args))
            if args.leak_check:
                leave_behind(server, args)
            print(gpu_memory(), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
