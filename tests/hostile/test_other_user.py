"""Another user of the machine reaches neither sockets nor shared memory, and a second server disturbs none."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from omni_python.client import OmniClient
from omni_python.config.compile import compile_pipeline
from omni_python.control.directory import find_server_directory
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

NOBODY = 65534

ATTEMPTS = """
import json, os, socket, sys
folder, paths = json.loads(sys.argv[1])
os.setgroups([]); os.setresgid(*[int(sys.argv[2])] * 3); os.setresuid(*[int(sys.argv[2])] * 3)
done = []
def attempt(what, do):
    try:
        do()
    except PermissionError:
        return
    except OSError as error:
        done.append(f"{what}: {error}")
    else:
        done.append(what)
attempt(f"list {folder}", lambda: os.listdir(folder))
attempt(f"write in {folder}", lambda: open(os.path.join(folder, "new"), "w"))
for path in paths:
    attempt(f"connect {path}", lambda: socket.socket(socket.AF_UNIX).connect(path)) if path.startswith(folder) else None
    for mode in ("rb", "r+b"):
        attempt(f"{mode} {path}", lambda: open(path, mode))
print(json.dumps(done))
"""


def processes(server: TritonServer) -> list[psutil.Process]:
    found = [psutil.Process(server.process.pid)]
    for child in found[0].children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def directory(server: TritonServer) -> Path:
    base = NoopLinePipelineConfig().endpoints.resolved_base_path
    found = find_server_directory(base, server.process.pid)
    assert found is not None
    return found


def entries(server: TritonServer) -> list[Path]:
    """What is in its directory, but for signs of life that are just being written."""
    return [path for path in directory(server).iterdir() if path.suffix != ".draft"]


def regions(server: TritonServer) -> set[str]:
    """The files of /dev/shm that the server's processes have mapped."""
    maps = "".join(Path(f"/proc/{process.pid}/maps").read_text() for process in processes(server))
    return {path for path in re.findall(r"(/dev/shm/\S+)", maps) if os.path.exists(path)}


def memfds(server: TritonServer) -> Iterator[str]:
    for process in processes(server):
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(link).startswith("/memfd:"):
                    yield str(link)


def test_modes(noop_server: TritonServer) -> None:
    folder = directory(noop_server)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = [*entries(noop_server), *map(Path, regions(noop_server))]
    assert sum(path.is_socket() for path in files) >= 4 and any(str(path).startswith("/dev/shm") for path in files)
    wrong = {str(path): oct(path.stat().st_mode) for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077}
    assert not wrong


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_attach(noop_server: TritonServer) -> None:
    folder = directory(noop_server)
    paths = [*map(str, entries(noop_server)), *regions(noop_server), *memfds(noop_server)]
    assert any("/fd/" in path for path in paths)
    for user, expected in ((NOBODY, False), (0, True)):
        command = [sys.executable, "-c", ATTEMPTS, json.dumps([str(folder), paths]), str(user)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        done = json.loads(run.stdout)
        assert bool(done) is expected, done  # the second one shows that the attempts are real
    (folder / "new").unlink()


@pytest.mark.timeout(240)
def test_a_second_server_of_the_same_user_disturbs_none(
    noop_server: TritonServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    repository = tmp_path_factory.mktemp("second")
    compile_pipeline(NoopLinePipelineConfig(), repository)
    before, files = {p.pid for p in processes(noop_server)}, set(entries(noop_server))
    with (
        TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=5), timeout_s=100) as second,
        OmniClient(second.grpc_url, "noop_line") as theirs,
        OmniClient(noop_server.grpc_url, "noop_line") as ours,
    ):
        assert directory(second) != directory(noop_server)
        assert not regions(second) & regions(noop_server)
        for nbytes in (1, 100_000):
            for client in (ours, theirs):
                assert f'"nbytes":{nbytes},' in client.chat("x", sampling={"nbytes": nbytes}).text
        gone = directory(second)
    assert not gone.exists()
    assert {p.pid for p in processes(noop_server)} == before and set(entries(noop_server)) >= files
    with OmniClient(noop_server.grpc_url, "noop_line") as ours:
        assert '"nbytes":100000,' in ours.chat("x", sampling={"nbytes": 100_000}).text
