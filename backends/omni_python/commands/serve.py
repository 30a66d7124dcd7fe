"""`omni serve`: run a tritonserver with the omni_python backend in the foreground."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from omni_python.commands.help import HelpFormatter
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.recording import ALLOW_REPLAY, RECORD_DIRECTORY
from omni_python.serve import descriptors
from omni_python.serve.environment import Installation, ServerSetupError, find_installation
from omni_python.serve.server_options import ServerOptions, cannot_listen
from omni_python.serve.supervisor import ExitStatus, Policy, Supervisor

if TYPE_CHECKING:
    from omni_python.config.schema import PipelineConfig
    from omni_python.serve.openai.server import HttpServer


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve",
        help="run a tritonserver with this backend",
        formatter_class=HelpFormatter,
        description="""\
Run a tritonserver with the omni_python backend: one on PATH, else the one of the nvidia-pytriton wheel. It is started
again when it dies, and so is an orchestrator. SIGTERM, Ctrl-C or closing its terminal lets requests in flight end, then
stops it; a second SIGTERM or Ctrl-C stops it at once.""",
        epilog="""\
examples:
  omni serve
  omni serve --model-repository models --openai-port 9000
  omni serve --host 0.0.0.0 --drain-seconds 120 -- --log-verbose=1
  omni serve --print                    # what it would run

exit status: 0 stopped by a signal, 1 the server could not start, 2 wrong arguments, 3 it died too often, 4 stopped by a
signal with requests cut off when the drain time was over, 128 + N stopped at once by a second signal N""",
    )
    add_arguments(parser)
    parser.add_argument(
        "--load-model",
        action="append",
        metavar="NAME",
        help="load this model alone; may be repeated (default: all of the repository)",
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=Policy.drain_s,
        metavar="S",
        help="for requests in flight to end after SIGTERM (default: %(default)s)",
    )
    parser.add_argument(
        "--max-deaths",
        type=int,
        default=Policy.max_deaths,
        metavar="N",
        help=f"give up after more deaths than this within {Policy.window_s:g} s (default: %(default)s)",
    )
    parser.add_argument(
        "--openai-port",
        type=int,
        metavar="PORT",
        help="serve OpenAI's API there, too (/v1/chat/completions, /v1/audio/speech, /v1/realtime), and a playground",
    )
    parser.add_argument(
        "--record-dir",
        type=Path,
        metavar="DIR",
        help="let clients have stages recorded into this folder, which then holds what users sent (see omni record)",
    )
    parser.add_argument(
        "--allow-replay", action="store_true", help="let clients run recordings through single stages (see omni replay)"
    )
    parser.add_argument("--print", action="store_true", help="print the shell command that it runs, and stop")
    parser.add_argument("extra", nargs="*", metavar="-- ARG", help="more arguments for tritonserver, after --")
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to serve and where: the arguments that every command with a server takes."""
    parser.add_argument(
        "--model-repository", type=Path, default=Path("model_repository"), metavar="DIR", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to bind; 0.0.0.0 lets other machines in (default: %(default)s)",
    )
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        parser.add_argument(
            f"--{name}-port", type=int, default=port, metavar="PORT", help="0 takes a free one (default: %(default)s)"
        )


def check_ports(args: argparse.Namespace) -> None:
    """Raises `InvalidArgument` for ports that there are not, or that two services are to share, for which tritonserver
    would print its whole help."""
    taken: dict[int, str] = {}
    for name in ("http_port", "grpc_port", "metrics_port", "openai_port"):
        flag, port = f"--{name.replace('_', '-')}", getattr(args, name, None)
        if not port:
            continue
        if not 0 < port < 1 << 16:
            raise InvalidArgument(f"{flag}: must be at most 65535, or 0 for a free one, not {port}")
        if port in taken:
            raise InvalidArgument(f"{flag}: {port} is that of {taken[port]}; give each its own, or 0 for a free one")
        taken[port] = flag


EXIT_TIMEOUT = 5
"""Seconds that Triton gets to stop. Requests have ended by then, all but those of orchestrators that died, for which it
would wait in vain."""


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes, or with --print say how; the statuses are those of `ExitStatus`. Raises `OmniError`
    for wrong arguments."""
    check_ports(args)
    if args.max_deaths < 0:
        raise InvalidArgument(f"--max-deaths: must be 0 or more, not {args.max_deaths}")
    if not 0 <= args.drain_seconds < math.inf:
        raise InvalidArgument(f"--drain-seconds: must be 0 or more, not {args.drain_seconds:g}")
    options = ServerOptions(
        model_repository=args.model_repository,
        host=args.host,
        http_port=args.http_port,
        grpc_port=args.grpc_port,
        metrics_port=args.metrics_port,
        models=tuple(args.load_model or ["*"]),
        exit_timeout_s=EXIT_TIMEOUT,
        extra=tuple(args.extra),
    )
    variables = _variables(args)
    if args.print:
        return _print(options, variables)
    os.environ.update(variables)
    descriptors.raise_limit()
    pipelines = _pipelines(args.model_repository)
    if args.model_repository.is_dir() and not any(args.model_repository.glob("*/config.pbtxt")):
        print(f"omni serve: {args.model_repository} holds no models; omni compile writes some", file=sys.stderr)
    status = _serve(args, options, pipelines)
    if status == ExitStatus.NOT_STARTED:
        for lack in _missing_checkpoints(args.model_repository, pipelines):
            print(f"omni serve: {lack}", file=sys.stderr)
    return status


def _serve(args: argparse.Namespace, options: ServerOptions, pipelines: Sequence[PipelineConfig]) -> int:
    policy = Policy(
        drain_s=args.drain_seconds,
        max_deaths=args.max_deaths,
        silence_s=max((pipeline.limits.silence_s for pipeline in pipelines), default=Policy.silence_s),
        reload_s=max((pipeline.limits.reload_s for pipeline in pipelines), default=Policy.reload_s),
    )
    bases = {pipeline.endpoints.resolved_base_path for pipeline in pipelines}
    if args.openai_port is None:
        return Supervisor(options, bases, policy).run()
    try:
        options = options.resolved()
        api = _openai_server(options, args.openai_port)
    except ServerSetupError as error:
        print(f"omni serve: {error}", file=sys.stderr)
        return ExitStatus.NOT_STARTED
    with api as server:
        print(f"OpenAI's API at {server.url}/v1, a playground at {server.url}/", flush=True)
        return Supervisor(options, bases, policy).run()


def _missing_checkpoints(repository: Path, pipelines: Sequence[PipelineConfig]) -> Iterator[str]:
    """What is most often wrong with a repository whose models cannot be loaded."""
    from omni_python.config.model_hub import how_to_get, is_hub_id
    from omni_python.config.resolve import resolved_model_path

    for pipeline in pipelines:
        path = resolved_model_path(pipeline, repository)
        if is_hub_id(path) or (Path(path).is_absolute() and not Path(path).exists()):
            yield f"the checkpoint of {pipeline.resolved_name} is not there: {path}; {how_to_get(path)}"


def _openai_server(options: ServerOptions, port: int) -> HttpServer:
    """Raises `OmniError` where its packages are missing, `ServerSetupError` where the port is taken."""
    try:
        from omni_python.serve.openai.app import create_app
        from omni_python.serve.openai.server import HttpServer
    except ImportError as error:
        raise OmniError(f"--openai-port needs the extra http of this package ({error})") from None
    host = "127.0.0.1" if options.host == "0.0.0.0" else options.host
    app = create_app(f"{host}:{options.grpc_port}", f"{host}:{options.metrics_port}")
    try:
        return HttpServer(app, options.host, port)
    except (OSError, UnicodeError) as error:
        raise cannot_listen(f"{options.host}:{port} for OpenAI's API", error) from None


def _variables(args: argparse.Namespace) -> dict[str, str]:
    """What the server's environment says of recording and replaying. Makes the folder, and raises OSError if it cannot
    be written to."""
    variables = {}
    if args.record_dir is not None:
        directory = args.record_dir.absolute()
        if not args.print:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        variables[RECORD_DIRECTORY] = str(directory)
    if args.allow_replay:
        variables[ALLOW_REPLAY] = "1"
    return variables


def _pipelines(repository: Path) -> list[PipelineConfig]:
    """The pipelines of a repository. Raises `ConfigError`."""
    from omni_python.config.files import load_pipeline

    return [load_pipeline(path) for path in sorted(repository.glob("*/1/pipeline.yaml"))]


def _print(options: ServerOptions, variables: dict[str, str]) -> int:
    try:
        options = options.resolved()
        installation = find_installation()
    except ServerSetupError as error:
        print(f"omni serve: {error}", file=sys.stderr)
        return ExitStatus.NOT_STARTED
    print(shell_command(installation, options.command(installation), variables))
    return 0


def shell_command(installation: Installation, command: list[str], own: Mapping[str, str] = MappingProxyType({})) -> str:
    """What a shell has to run to get the same server, with environment variables of its `own`."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in own.items()]
    variables += [
        f'{name}="{":".join(map(str, folders))}${{{name}:+:${name}}}"'
        for name, folders in (("PATH", installation.path), ("LD_LIBRARY_PATH", installation.library_path))
        if folders
    ]
    first = f"cd {shlex.quote(str(installation.working_directory))} && env -u PYTHONHOME"
    return " \\\n  ".join([first, *variables, *map(shlex.quote, command)])
