"""When a server has to be killed, as its supervisor sees it: with a process that stands for it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_python.config.compile import compile_pipeline
from omni_python.control.directory import server_directory
from omni_python.control.liveness import LifeSign, write_life_sign
from omni_python.control.restart_wishes import wish_restart
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.serve.health import SETTLE_S, ServerHealth, all_pipelines
from omni_python.serve.orchestrators import Orchestrators
from omni_python.serve.triton_server import TritonServer
from tests.control.test_stops import stop

SILENCE = 5.0
STEP = SETTLE_S / 10


class Watched:
    """A server that is a mere process, whose pipelines keep their signs below `base`."""

    def __init__(self, base: Path, port: int = 1) -> None:
        self.process = subprocess.Popen(["sleep", "100"])
        self.directory = server_directory(base, self.process.pid)
        server = TritonServer("127.0.0.1", port, port, port, self.process, base / "log", "x", 1, 1, base)
        self.health = ServerHealth(server, Orchestrators(server, [base], SILENCE), SILENCE, {"one", "two"})

    def complaints(self, start: float, seconds: float) -> list[str]:
        """Those of some looks from `start` on."""
        return [self.health.complaint(start + number * STEP) for number in range(int(seconds / STEP) + 1)]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.health.close()
    watched.process.kill()
    watched.process.wait()


def test_a_server_that_waits_for_processes_which_are_there_is_told_of(watched: Watched) -> None:
    write_life_sign(watched.directory, "one", LifeSign(1, 0, complete=True))
    assert not any(watched.complaints(0, 3 * SETTLE_S)), "a pipeline has no orchestrator yet"
    write_life_sign(watched.directory, "two", LifeSign(2, 0, complete=False))
    assert not any(watched.complaints(1000, 3 * SETTLE_S)), "a pipeline lacks processes"
    write_life_sign(watched.directory, "two", LifeSign(2, 0, complete=True))
    *before, last = watched.complaints(2000, SETTLE_S + STEP)
    assert not any(before) and last == "has not become ready in the 30 s since all processes are there"


def test_a_server_that_is_ready_and_asked_nothing_is_well(watched: Watched) -> None:
    for name in ("one", "two"):
        write_life_sign(watched.directory, name, LifeSign(1, 0, complete=True))
    watched.health.begin()
    assert not any(watched.complaints(0, 3 * SETTLE_S))


def test_a_server_that_does_not_answer_is_told_of_after_its_silence(watched: Watched) -> None:
    watched.health.begin()
    end = time.monotonic() + 20
    while not watched.health.complaint(time.monotonic() + 2 * SILENCE):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert watched.health.complaint(time.monotonic() + 2 * SILENCE).startswith("has been silent for ")
    assert watched.health.complaint(time.monotonic()) == ""


def test_a_stopped_server_is_told_of(watched: Watched) -> None:
    stop(watched.process)
    assert watched.complaints(0, 2 * STEP) == ["", "", "was stopped by a signal"]


def test_what_a_pipeline_wishes_is_told(watched: Watched) -> None:
    wish_restart(watched.directory, "two", "has not loaded two_b again within 60 s")
    assert watched.health.complaint(0.0) == "has not loaded two_b again within 60 s, says two"


def test_pipelines_are_known_where_there_is_nothing_else(tmp_path: Path) -> None:
    for config in (NoopLinePipelineConfig(), NoopForwardPipelineConfig()):
        compile_pipeline(config, tmp_path)
    assert all_pipelines(tmp_path) == {"noop_line", "noop_forward"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.pbtxt").write_text('backend: "onnxruntime"')
    assert all_pipelines(tmp_path) is None
