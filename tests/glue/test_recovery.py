"""Reloads of dead processes, in a server whose answers a test gives; whole ones are tested with servers."""

from __future__ import annotations

import importlib
import queue
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from omni_python.config.parts import LimitsConfig
from omni_python.config.topology import resolve_topology
from omni_python.control import safely
from omni_python.models.noop.config import NoopLinePipelineConfig
from tests.glue.fake_triton import OLD
from tests.glue.loading import glue_on
from tests.waiting import wait_until


class FakeServer:
    """`loads` has the model of each load that has begun, and what lets it end."""

    def __init__(self) -> None:
        self.loads: queue.SimpleQueue[tuple[str, threading.Event]] = queue.SimpleQueue()

    def load_model(self, model: str, config: str = "") -> None:
        end = threading.Event()
        self.loads.put((model, end))
        assert end.wait(60)

    def unload_model(self, model: str) -> None: ...

    def is_loaded(self, model: str) -> bool:
        return False

    def next(self) -> tuple[str, threading.Event]:
        return self.loads.get(timeout=20)


@pytest.fixture
def recovery() -> Iterator[ModuleType]:
    with glue_on(OLD.module()):
        yield importlib.import_module("omni_python.glue.recovery")


@pytest.fixture
def server(recovery: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    server = FakeServer()
    for name in ("load_model", "unload_model", "is_loaded"):
        monkeypatch.setattr(recovery, name, getattr(server, name))
    return server


class Reloader:
    """One of a pipeline with the processes a, b and c, each with one replica."""

    def __init__(
        self, recovery: Any, limits: LimitsConfig, give_up: Callable[[str, int, str], None] = lambda *_: None
    ) -> None:
        self.stuck: list[str] = []
        topology = resolve_topology(NoopLinePipelineConfig())
        self.real = recovery.ModelReloader(topology, give_up, lambda process, why: self.stuck.append(why), limits)
        self.real.start()

    def died(self, process: str) -> None:
        self.real.recover(process, 0, 0.0)


def test_a_reload_that_hangs_is_told_of_beside_another_of_the_same_process_that_ends(
    recovery: ModuleType, server: FakeServer
) -> None:
    """The process was back and died before Triton had said that it was."""
    reloader = Reloader(recovery, LimitsConfig(reload_s=2))
    reloader.died("b")
    _, end_first = server.next()
    before = reloads()
    reloader.died("b")
    wait_until(lambda: reloads() > before)
    end_first.set()
    _, end_second = server.next()
    wait_until(lambda: reloader.stuck)
    assert "has not loaded" in reloader.stuck[0]
    end_second.set()
    wait_until(lambda: not reloader.real._late)
    reloader.real.stop()


def test_processes_are_brought_back_after_a_failure_to_see_to_one(
    recovery: ModuleType, server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safely, "PAUSE", 0.01)
    told = threading.Event()

    def give_up(process: str, replica: int, why: str) -> None:
        told.set()
        raise RuntimeError("a bug in what is told")

    reloader = Reloader(recovery, LimitsConfig(max_deaths=1), give_up)
    reloader.died("a")
    model_a, end = server.next()
    end.set()
    reloader.died("a")
    assert told.wait(10)
    reloader.died("b")
    model_b, end = server.next()
    assert model_b != model_a
    end.set()
    reloader.real.stop()
    assert "a bug in what is told" in caplog.text


def test_a_reload_is_tried_again_where_no_thread_was_left_for_it(
    recovery: ModuleType, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that is at its limit of processes for a moment."""
    monkeypatch.setattr(safely, "PAUSE", 0.01)
    tried = threading.Semaphore(0)

    def start(thread: threading.Thread) -> None:
        tried.release()
        raise RuntimeError("can't start new thread")

    reloader = Reloader(recovery, LimitsConfig())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        reloader.died("b")
        for _ in range(2):
            assert tried.acquire(timeout=10)
    _, end = server.next()
    end.set()
    wait_until(lambda: not reloader.real._late)
    reloader.real.stop()


def reloads() -> int:
    return sum(thread.name == "omni-reload" for thread in threading.enumerate())
