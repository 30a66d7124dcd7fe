"""`omni quickstart`: start a server, show one answer, and go on serving until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from omni_python.commands.demonstration import demonstrate, examples
from omni_python.commands.serve import add_arguments
from omni_python.serve.environment import ServerSetupError
from omni_python.serve.triton_server import ServerFailed, ServerOptions, TritonServer

PIPELINE = "qwen3_omni"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "quickstart",
        help="start a server and show one answer",
        description="Start a tritonserver, ask it a spoken question about a photo, write the spoken answer to "
        "answer.wav in the current folder, and go on serving until Ctrl-C.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--model-path", metavar="DIR", help="another checkpoint, a folder or a hub id (default: the repository's own)"
    )
    parser.add_argument("--once", action="store_true", help="stop after the answer")
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve; 1 where the server cannot start, refuses or ends by itself. Whatever ends this, ends the server."""
    from omni_python.client import OmniClientError

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        with ExitStack() as cleanup:
            repository = args.model_repository
            if args.model_path is not None:
                repository = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="omni-quickstart-")))
                compile_for(args.model_path, args.model_repository, repository)
            server = cleanup.enter_context(_start(args, repository))
            show_answer(server, repository)
            return 0 if args.once else _serve(server)
    except (ServerSetupError, ServerFailed, OmniClientError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped")
        return 0


def compile_for(model_path: str, declared: Path, repository: Path) -> None:
    """Write into `repository` the pipeline that `declared` has, with another checkpoint: a folder or a hub id."""
    from omni_python.config.compile import compile_pipeline
    from omni_python.config.files import load_pipeline

    folder = Path(model_path).expanduser()
    config = load_pipeline(declared / PIPELINE / "1" / "pipeline.yaml")
    compile_pipeline(
        config.changed(name=PIPELINE, model_path=str(folder.resolve()) if folder.is_dir() else model_path), repository
    )


def show_answer(server: TritonServer, repository: Path) -> None:
    """Show the demonstration; its speech goes to answer.wav in the current folder."""
    from omni_python.config.files import load_pipeline

    demonstrate(server.grpc_url, PIPELINE, Path("answer.wav"))
    checkpoint = load_pipeline(repository / PIPELINE / "1" / "pipeline.yaml").model_path
    if Path(checkpoint).name.startswith("tiny-"):
        print("\nThe tiny checkpoint has random weights: what it says means nothing; --model-path serves a real one.")


def _start(args: argparse.Namespace, repository: Path) -> TritonServer:
    options = ServerOptions(
        model_repository=repository,
        host=args.host,
        http_port=args.http_port,
        grpc_port=args.grpc_port,
        metrics_port=args.metrics_port,
        exit_timeout_s=5,
    )
    print("starting tritonserver ... ", end="", flush=True)
    start = time.monotonic()
    server = TritonServer.start(options)
    print(f"ready after {time.monotonic() - start:.1f} s: HTTP on {server.http_url}, gRPC on {server.grpc_url}")
    return server


def _serve(server: TritonServer) -> int:
    print("\n" + examples(server.http_url, server.grpc_url, PIPELINE))
    print("serving until Ctrl-C", flush=True)
    while not server.has_exited():
        time.sleep(0.5)
    print(f"tritonserver ended: {server.failure()}", file=sys.stderr)
    return 1


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
