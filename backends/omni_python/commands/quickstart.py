"""`omni quickstart`: start a server, show one answer, and go on serving until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from omni_python.commands.answering import answer_as_json
from omni_python.commands.demonstration import demonstrate, examples, question
from omni_python.commands.help import HelpFormatter
from omni_python.commands.progress import counting
from omni_python.commands.serve import add_arguments, check_ports
from omni_python.models.catalog import PIPELINES
from omni_python.serve.environment import ServerSetupError
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import ServerFailed, TritonServer

PIPELINE = "qwen3_omni"
SPEECH = Path("answer.wav")

_LOADED = b"] \"successfully loaded '"
"""In tritonserver's log, once for each model."""

_EXAMPLES = """\
examples:
  omni quickstart                                # the repository's own checkpoint
  omni quickstart --model-path Qwen/Qwen3-Omni-30B-A3B-Instruct
  omni quickstart --once --json --http-port 0 --grpc-port 0 --metrics-port 0
  omni quickstart --pipeline speech_to_speech --model-path checkpoints/speech_to_speech
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "quickstart",
        help="start a server and show one answer",
        description="Start a tritonserver, ask it a spoken question about a photo, write the spoken answer to "
        "answer.wav in the current folder, and go on serving until Ctrl-C.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument(
        "--pipeline",
        choices=sorted(PIPELINES),
        default=PIPELINE,
        metavar="NAME",
        help="another pipeline than %(default)s; it needs --model-path",
    )
    parser.add_argument(
        "--model-path",
        metavar="PATH",
        help="another checkpoint: a folder, or an id that Hugging Face's cache holds (default: the repository's own)",
    )
    parser.add_argument("--once", action="store_true", help="stop after the answer")
    parser.add_argument("--json", action="store_true", help="with --once: print the answer as one JSON object, alone")
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve; 1 where the server cannot start, refuses or ends by itself. Whatever ends this, ends the server."""
    from omni_python.client import OmniClientError

    check_ports(args)
    if args.json and not args.once:
        print("omni quickstart: --json needs --once: it prints one answer", file=sys.stderr)
        return 2
    if args.pipeline != PIPELINE and args.model_path is None:
        print(f"omni quickstart: {args.pipeline} needs --model-path: the folder of its checkpoint", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` has it
        signal.signal(signal.SIGHUP, _leave)
    try:
        with ExitStack() as cleanup:
            repository = args.model_repository
            if args.model_path is not None:
                repository = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="omni-quickstart-")))
                compile_for(args.pipeline, args.model_path, args.model_repository, repository)
            if not (repository / args.pipeline / "config.pbtxt").is_file():
                raise ServerSetupError(f"there is no pipeline {args.pipeline} in {repository}; omni compile writes one")
            logs = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="omni-quickstart-"))
            server = cleanup.enter_context(_start(args, repository, Path(logs) / "tritonserver.log"))
            if args.json:
                print_answer(server, args.pipeline)
                return 0
            show_answer(server, repository, args.pipeline)
            return 0 if args.once else _serve(server, args.pipeline)
    except (ServerSetupError, ServerFailed, OmniClientError) as error:
        print(f"omni quickstart: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped")
        return 0


def compile_for(pipeline: str, model_path: str, declared: Path, repository: Path) -> None:
    """Write into `repository` a pipeline with a checkpoint, a folder or a hub id: as `declared` has it, if it does, or
    as the package does. Raises `ServerSetupError` where the checkpoint is not there."""
    from omni_python.config.compile import compile_pipeline
    from omni_python.config.files import config_class, load_pipeline
    from omni_python.config.model_hub import cached_model, how_to_get, is_hub_id

    folder = Path(model_path).expanduser()
    if folder.is_dir():
        model_path = str(folder.resolve())
    elif model_path.startswith(("/", "./", "../", "~")):
        raise ServerSetupError(f"--model-path: there is no folder {folder}; {how_to_get(model_path)}")
    elif is_hub_id(model_path) and cached_model(model_path) is None:
        raise ServerSetupError(f"--model-path: {model_path} is not there; {how_to_get(model_path)}")
    file = declared / pipeline / "1" / "pipeline.yaml"
    if file.exists():
        config = load_pipeline(file).changed(name=pipeline, model_path=model_path)
    else:
        config = config_class(PIPELINES[pipeline], "PIPELINE")(name=pipeline, model_path=model_path)
    compile_pipeline(config, repository)


def show_answer(server: TritonServer, repository: Path, pipeline: str) -> None:
    """Show the demonstration; its speech goes to answer.wav in the current folder."""
    from omni_python.config.files import load_pipeline

    demonstrate(server.grpc_url, pipeline, SPEECH)
    checkpoint = load_pipeline(repository / pipeline / "1" / "pipeline.yaml").model_path
    if Path(checkpoint).name.startswith("tiny-"):
        print("\nThe tiny checkpoint has random weights: what it says means nothing; --model-path serves a real one.")


def print_answer(server: TritonServer, pipeline: str) -> None:
    """Print the demonstration's answer for scripts; its speech goes to answer.wav, too."""
    from omni_python.client import Answer, OmniClient

    with OmniClient(server.grpc_url, pipeline) as client:
        answer = Answer.collect(question(client, pipeline))
    speech = SPEECH if len(answer.audio) else None
    if speech is not None:
        answer.save_wav(speech)
    print(json.dumps(answer_as_json(answer, speech), ensure_ascii=False))


def _start(args: argparse.Namespace, repository: Path, log: Path) -> TritonServer:
    options = ServerOptions(
        model_repository=repository,
        host=args.host,
        http_port=args.http_port,
        grpc_port=args.grpc_port,
        metrics_port=args.metrics_port,
        exit_timeout_s=5,
    )
    start = time.monotonic()
    models = len(list(repository.glob("*/config.pbtxt")))
    with counting("starting tritonserver", "models", models, lambda: _loaded(log)):
        server = TritonServer.start(options, log)
    if not args.json:
        took = time.monotonic() - start
        print(f"tritonserver is ready after {took:.1f} s: HTTP on {server.http_url}, gRPC on {server.grpc_url}")
    return server


def _loaded(log: Path) -> int:
    """How many models a server has loaded, by its log."""
    return log.read_bytes().count(_LOADED) if log.exists() else 0


def _serve(server: TritonServer, pipeline: str) -> int:
    print("\n" + examples(server.http_url, server.grpc_url, pipeline))
    print("serving until Ctrl-C", flush=True)
    while not server.has_exited():
        time.sleep(0.5)
    print(f"tritonserver ended: {server.failure()}", file=sys.stderr)
    return 1


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
