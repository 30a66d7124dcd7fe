"""`omni serve`: run a tritonserver with the omni_python backend in the foreground."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from omni_python.serve.environment import Installation, ServerSetupError, find_installation
from omni_python.serve.triton_server import ServerOptions


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve",
        help="run a tritonserver with this backend",
        description="Run a tritonserver with the omni_python backend until Ctrl-C: one on PATH, else the one of the "
        "nvidia-pytriton wheel. It becomes this process.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--load-model",
        action="append",
        metavar="NAME",
        help="load this model alone; may be repeated (default: all of the repository)",
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


def run(args: argparse.Namespace) -> int:
    """Become the server. Returns only with --print (0) or where no server can run (1)."""
    try:
        options = ServerOptions(
            model_repository=args.model_repository,
            host=args.host,
            http_port=args.http_port,
            grpc_port=args.grpc_port,
            metrics_port=args.metrics_port,
            models=tuple(args.load_model or ["*"]),
            extra=tuple(args.extra),
        ).resolved()
        installation = find_installation()
        command = options.command(installation)
        if args.print:
            print(shell_command(installation, command))
            return 0
        options.check_ports()
    except ServerSetupError as error:
        print(error, file=sys.stderr)
        return 1
    ports = f"HTTP {options.http_port}, gRPC {options.grpc_port}, metrics {options.metrics_port}"
    print(f"tritonserver on {options.host}: {ports}", flush=True)
    os.chdir(installation.working_directory)
    os.execve(installation.executable, command, installation.environment())


def shell_command(installation: Installation, command: list[str]) -> str:
    """What a shell has to run to get the same server."""
    variables = [
        f'{name}="{":".join(map(str, folders))}${{{name}:+:${name}}}"'
        for name, folders in (("PATH", installation.path), ("LD_LIBRARY_PATH", installation.library_path))
        if folders
    ]
    first = f"cd {shlex.quote(str(installation.working_directory))} && env -u PYTHONHOME"
    return " \\\n  ".join([first, *variables, *map(shlex.quote, command)])
