"""Stubs whose server is killed while they start: by the time that they look for its directory, they have another
parent."""

from __future__ import annotations

from contextlib import suppress
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
    """Triton has told it to load its model."""
    return any("zmq" in Path(region.path).name for region in stub.memory_maps())


def test_they_end_and_make_no_directory(directory: Path, tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(endpoints=EndpointsConfig(base_path=str(directory))), tmp_path / "models")
    server = TritonServer.launch(ServerOptions(model_repository=tmp_path / "models"))
    stopped: dict[str, psutil.Process] = {}

    def all_stopped() -> bool:
        for child in psutil.Process(server.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if name_of(child) in MODELS - stopped.keys() and imports_ours(child):
                    child.suspend()
                    stopped[name_of(child)] = child
        return stopped.keys() == MODELS

    try:
        wait_until(all_stopped, 60)
        server.process.kill()
        server.process.wait()
        assert not list(directory.iterdir()), "stopped too late: they had a parent when they asked"
        for stub in stopped.values():
            stub.resume()
        made: set[Path] = set()

        def all_ended() -> bool:
            made.update(directory.iterdir())
            return not any(is_running(stub.pid) for stub in stopped.values())

        wait_until(all_ended, 30)
        assert not made
    finally:
        for stub in stopped.values():
            with suppress(psutil.NoSuchProcess):
                stub.kill()
        server.stop()
