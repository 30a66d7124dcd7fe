"""What is read of the command lines of a real server's stubs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from omni_python.control.stub_command import StubCommand
from omni_python.serve.triton_server import TritonServer


def test_stubs_of_a_server(noop_server: TritonServer) -> None:
    children = psutil.Process(noop_server.process.pid).children()
    commands = [command for child in children if (command := StubCommand.of(child.pid)) is not None]
    assert {command.model for command in commands} >= {"noop_line", "noop_line_a", "noop_forward"}
    for command in commands:
        assert command.instance == f"{command.model}_0_0"
        assert command.server_pid == noop_server.process.pid
        assert command.model_file.name == "model.py"
        assert (Path("/dev/shm") / command.region).is_file()
    assert len({command.region for command in commands}) == len(commands)


def test_other_processes_are_none(noop_server: TritonServer) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in (os.getpid(), noop_server.process.pid, ended.pid):
        assert StubCommand.of(pid) is None
    assert StubCommand.parse([]) is None
    assert StubCommand.parse(["/x/triton_python_backend_stub", "/m/a/1/model.py"]) is None
