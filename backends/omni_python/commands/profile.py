"""`omni profile`: torch's profiler in stages of a running server."""

from __future__ import annotations

import argparse
import queue
import secrets
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python.commands.help import HelpFormatter
from omni_python.proto.errors import InvalidArgument, OmniError, Unavailable

if TYPE_CHECKING:
    from omni_python.proto.messages import ControlMessage, ProfileReply

FIRST_REPLY = 5.0
"""Seconds for the orchestrator to answer."""

WRITING = 120.0
"""Seconds to import torch before a profile, and to write the trace after it, at most."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "profile",
        help="run torch's profiler in stages of a running server",
        description="""\
Run torch's profiler for some seconds in the processes of some stages of a server that this user runs on this host. Each
process writes a Chrome trace, for https://ui.perfetto.dev or chrome://tracing. Ctrl-C ends the profile early, and
writes what there is.""",
        epilog="""\
examples:
  omni profile --stages thinker,talker_ar --seconds 5 --out traces
  omni profile --seconds 1

exit status: 0 all traces are written, 1 not all, 2 wrong arguments, or no such server""",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--stages", default="", metavar="A,B", help="(default: all)")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="(default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("."), metavar="DIR", help="where traces go (default: this folder)"
    )
    parser.add_argument("--pipeline", metavar="NAME", help="which pipeline of the server (default: the only one)")
    parser.add_argument("--server-pid", type=int, metavar="PID", help="which tritonserver (default: the only one)")
    parser.add_argument(
        "--base-path", type=Path, metavar="DIR", help="the pipeline's endpoints.base_path, if it is not the default"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Profile; 1 where a process has not written its trace. Raises `OmniError` where no server is told."""
    from omni_python.control.directory import socket_address
    from omni_python.control.inbox import Inbox
    from omni_python.control.outlet import LocalOutlet
    from omni_python.pipeline.membership import coordinator_address
    from omni_python.proto.messages import ProfileMessage, StopProfileMessage

    directory, pipeline = _find(args)
    args.out.mkdir(parents=True, exist_ok=True)
    profile = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    stages = tuple(name.strip() for name in args.stages.split(",") if name.strip())
    replies: queue.SimpleQueue[ControlMessage] = queue.SimpleQueue()
    inbox = Inbox(socket_address(directory, f"profile-{secrets.token_hex(4)}"), replies.put)
    outlet = LocalOutlet(coordinator_address(directory, pipeline))
    inbox.start()
    waiting = _Waiting(replies, args.seconds)
    try:
        outlet.send(ProfileMessage(0, profile, stages, args.seconds, str(args.out.absolute()), inbox.address))
        try:
            return waiting.wait()
        except KeyboardInterrupt:
            print("ending the profile early (Ctrl-C again to leave it)", file=sys.stderr)
            outlet.send(StopProfileMessage(0, profile))
            return waiting.wait()
    finally:
        outlet.close(linger=1.0)
        inbox.stop()


class _Waiting:
    """For the replies; `wait` can be called again after it was interrupted."""

    def __init__(self, replies: queue.SimpleQueue[ControlMessage], seconds: float) -> None:
        self._replies = replies
        self._end = time.monotonic() + FIRST_REPLY
        self._seconds = seconds
        self._told: set[str] | None = None
        self._done: set[str] = set()
        self._failed = False

    def wait(self) -> int:
        """The exit status, once all processes have written or failed. Raises `OmniError` where none was told."""
        while self._told is None or self._done < self._told:
            try:
                reply = self._replies.get(timeout=max(0.0, self._end - time.monotonic()))
            except queue.Empty:
                return self._give_up()
            self._read(reply)  # type: ignore[arg-type]
        return 1 if self._failed else 0

    def _read(self, reply: ProfileReply) -> None:
        if not reply.source:
            if reply.error is not None:
                raise reply.error.exception()
            self._told = set(reply.processes)
            self._end = time.monotonic() + self._seconds + WRITING
        elif reply.error is not None:
            self._done.add(reply.source)
            self._failed = True
            print(f"omni profile: {reply.source}: {reply.error.message}", file=sys.stderr)
        elif reply.path:
            self._done.add(reply.source)
            print(reply.path, flush=True)
        else:
            print(f"{reply.source}: profiling for up to {self._seconds:g} s", file=sys.stderr, flush=True)

    def _give_up(self) -> int:
        if self._told is None:
            raise Unavailable("the orchestrator does not answer")
        print(f"omni profile: no answer from {', '.join(sorted(self._told - self._done))}", file=sys.stderr)
        return 1


def _find(args: argparse.Namespace) -> tuple[Path, str]:
    """The directory of the server's sockets, and the pipeline."""
    from omni_python.config.parts import EndpointsConfig
    from omni_python.control.directory import running_servers
    from omni_python.control.liveness import read_life_signs

    base = args.base_path or EndpointsConfig().resolved_base_path
    servers = {pid: (path, list(read_life_signs(path))) for pid, path in running_servers(base).items()}
    servers = {pid: found for pid, found in servers.items() if found[1] and args.server_pid in (None, pid)}
    if not servers:
        wanted = "" if args.server_pid is None else f" with process id {args.server_pid}"
        raise OmniError(f"this user has no running server{wanted} with sockets below {base} (see --base-path)")
    if len(servers) > 1:
        raise InvalidArgument(f"there are several servers; choose one: --server-pid {' or '.join(map(str, servers))}")
    [(directory, pipelines)] = servers.values()
    if args.pipeline in pipelines:
        return directory, args.pipeline
    if args.pipeline is None and len(pipelines) == 1:
        return directory, pipelines[0]
    raise InvalidArgument(f"choose one of the server's pipelines: --pipeline {' or '.join(pipelines)}")
