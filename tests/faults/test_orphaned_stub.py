"""Stubs whose server is killed while they start: by the time that they look for its directory, they have another
parent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from omni_python.config.compile import compile_pipeline
from omni_python.config.parts import EndpointsConfig
from omni_python.control.proc_stat import is_running
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.faults.serving import name_of
from tests.waiting import wait_until

MODELS = {"noop_line", "noop_line_a", "noop_line_b", "noop_line_c"}


def imports_ours(stub: psutil.Process) -> bool:
    """Triton has told it to load its model. `psutil` would ask the kernel for much more, and be too late."""
    try:
        return b"zmq" in Path(f"/proc/{stub.pid}/maps").read_bytes()
    except OSError:
        return False


def suspend_all(server: TritonServer) -> list[psutil.Process]:
    """All of its stubs, each while it imports what it needs."""
    stopped: dict[str, psutil.Process] = {}

    def all_stopped() -> bool:
        for child in psutil.Process(server.process.pid).children():
            if child.pid not in [process.pid for process in stopped.values()] and imports_ours(child):
                child.suspend()
                stopped[name_of(child)] = child
        return stopped.keys() == MODELS

    wait_until(all_stopped, 60, 0.001)
    return list(stopped.values())


@contextmanager
def orphans(models: Path, directory: Path) -> Iterator[list[psutil.Process]]:
    """Suspended stubs whose server is gone, none of which has made the server's directory yet. Where this process was
    held up, it has suspended them too late, and tries again with another server."""
    for _ in range(5):
        with TritonServer.launch(ServerOptions(model_repository=models)) as server:
            stubs = suspend_all(server)
            server.process.kill()
            server.process.wait()  # the block's end then removes what is left, but does not end the stubs
            try:
                if not list(directory.iterdir()):
                    yield stubs
                    return
            finally:
                for stub in stubs:
                    with suppress(psutil.NoSuchProcess):
                        stub.kill()
                psutil.wait_procs(stubs, 10)
        for made in directory.iterdir():
            shutil.rmtree(made)
    raise AssertionError("always stopped too late: they had a parent when they asked")


def test_they_end_and_make_no_directory(directory: Path, tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(endpoints=EndpointsConfig(base_path=str(directory))), tmp_path / "models")
    with orphans(tmp_path / "models", directory) as stubs:
        for stub in stubs:
            stub.resume()
        made: set[Path] = set()

        def all_ended() -> bool:
            made.update(directory.iterdir())
            return not any(is_running(stub.pid) for stub in stubs)

        wait_until(all_ended, 30)
        assert not made
