"""A server that stays in its handler of a fatal signal: it answers its health by HTTP all the time."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest

from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from tests.faults.serving import Serving
from tests.faults.test_supervisor import ask
from tests.waiting import wait_until

SINGLESTEP, SEIZE, WALL = 9, 0x4206, 0x40000000
"""From linux/ptrace.h and linux/wait.h."""

libc = ctypes.CDLL(None, use_errno=True)


def ptrace(request: int, thread: int, data: int = 0) -> None:
    arguments = (ctypes.c_long(request), ctypes.c_long(thread), ctypes.c_void_p(0), ctypes.c_void_p(data))
    if libc.ptrace(*arguments):
        number = ctypes.get_errno()
        pytest.skip(f"nobody may trace a process here ({os.strerror(number)}); it runs where root may")


def stop_in_handler(pid: int) -> int:
    """A thread of the process, stopped where it begins to handle SIGABRT."""
    thread = max(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    ptrace(SEIZE, thread)
    libc.tgkill(pid, thread, signal.SIGABRT)
    os.waitpid(thread, WALL)  # it is about to be given the signal
    ptrace(SINGLESTEP, thread, signal.SIGABRT)
    os.waitpid(thread, WALL)
    return thread


def test_it_is_killed_and_another_serves(tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path / "models")
    with Serving(tmp_path / "models", tmp_path / "log") as serving:
        thread = stop_in_handler(serving.server().pid)

        def has_ended() -> bool:
            return os.waitpid(thread, WALL | os.WNOHANG)[0] == thread  # until then nobody hears of its process's end

        wait_until(has_ended, 30)
        serving.wait_said("omni serve: ready", 60, count=2)
        assert "tritonserver has crashed (SIGABRT) and does not end, and is killed" in serving.said()
        assert ask(serving, nbytes=3).text == '{"nbytes":3,"last":2}'
