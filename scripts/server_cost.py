"""What requests cost a server on this machine."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from omni_python.serve.triton_server import TritonServer


@dataclass(frozen=True)
class Round:
    """Requests a second, and the server's CPU milliseconds a request."""

    rate: float
    cpu: float


def cpu_seconds(server: TritonServer) -> float:
    """That its process and all below it have used so far."""
    root = psutil.Process(server.process.pid)
    return sum(sum(process.cpu_times()[:2]) for process in (root, *root.children(recursive=True)))
