"""Recording, replaying and profiling the tiny checkpoint on a GPU, inside tritonserver.

    PYTHONPATH=.:backends:scripts python3 scripts/check_recording_gpu.py CHECKPOINT [--gpu 0] [--dtype float32|bfloat16]
        [--engine torch|sglang] [--out DIR]

CHECKPOINT is what `omni checkpoint` builds. All stages are recorded for a sampled request with all media; another
server replays each recording, and must give the same. Then all processes are profiled under load; each trace must have
kernels of the GPU in it. `--out` keeps recordings and traces.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

from check_gpu import on_gpu
from tests.oracle.cases import load_case

from omni_python.cli import main as omni
from omni_python.client import OmniClient, Recorded, replay
from omni_python.commands.comparing import Tolerance, differences
from omni_python.config.compile import compile_pipeline
from omni_python.proto.recording import ALLOW_REPLAY, RECORD_DIRECTORY, decode_recording
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

SAMPLING = {"temperature": 1.0, "max_tokens": 20, "talker": {"temperature": 0.9, "max_tokens": 40}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--engine", default="torch", help="of thinker and talker: torch or sglang")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        kept = args.out or Path(folder) / "kept"
        kept.mkdir(parents=True, exist_ok=True)
        os.environ |= {RECORD_DIRECTORY: str(kept.resolve()), ALLOW_REPLAY: "1"}
        models = Path(folder) / "models"
        config = on_gpu(args.checkpoint, args.gpu, args.dtype, args.engine)
        compile_pipeline(config, models)
        with TritonServer.start(ServerOptions(model_repository=models), timeout_s=400) as server:
            files = record(server, [stage.name for stage in config.stages])
        with TritonServer.start(ServerOptions(model_repository=models), timeout_s=400) as server:
            wrong += [path.name for path in files if not is_same(server, path)]
            wrong += profile(server, kept / "traces")
    print(f"wrong: {', '.join(wrong)}" if wrong else "all as recorded")
    raise SystemExit(bool(wrong))


def record(server: TritonServer, stages: list[str]) -> list[Path]:
    """One request, all stages of it."""
    with OmniClient(server.grpc_url) as client:
        messages = load_case("all").openai_messages()
        events = client.stream(messages=messages, sampling={**SAMPLING, "record": stages})
        [recorded] = [event for event in events if isinstance(event, Recorded)]
    files = [Path(path) for path in recorded.paths]
    end = time.monotonic() + 10
    while not all(path.exists() for path in files) and time.monotonic() < end:
        time.sleep(0.1)
    return files


def is_same(server: TritonServer, path: Path) -> bool:
    """Replay one file; prints what differs."""
    try:
        recording = decode_recording(path.read_bytes())
        again = replay(server.grpc_url, path.read_bytes(), recording.header.model, limit=60)
        found = list(differences(recording.outputs, again.outputs, Tolerance()))
    except Exception as error:
        print(f"{path.name}: {type(error).__name__}: {error}", flush=True)
        return False
    print(
        f"{recording.header.stage}: {len(recording.inputs)} inputs, {len(again.outputs)} outputs, differences:", found
    )
    return not found


def profile(server: TritonServer, out: Path) -> list[str]:
    """Profile all processes while requests are served; the names of traces without kernels."""
    done = threading.Event()
    thread = threading.Thread(target=ask, args=(server, done))
    thread.start()
    status = omni(["profile", "--seconds", "3", "--out", str(out), "--server-pid", str(server.process.pid)])
    done.set()
    thread.join()
    without = []
    for path in sorted(out.iterdir()):
        kernels = path.read_text().count('"cat": "kernel"')
        print(f"{path.name}: {path.stat().st_size >> 10} KiB, {kernels} kernels", flush=True)
        if not kernels:
            without.append(path.name)
    return without if status == 0 else ["omni profile", *without]


def ask(server: TritonServer, done: threading.Event) -> None:
    messages = load_case("all").openai_messages()
    with OmniClient(server.grpc_url) as client:
        while not done.is_set():
            client.chat(messages=messages, sampling=SAMPLING)


if __name__ == "__main__":
    main()
