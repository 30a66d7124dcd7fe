"""How stage processes come to a coordinator and leave it, while other things go on."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.pipeline.build import pipeline_spec
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.members import HELD_UP, Members
from tests.pipeline.harness import Pipeline


@contextmanager
def threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Garbage:
    """Lets other threads run when it is collected, which is wherever memory is asked for."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


def test_processes_may_register_while_heartbeats_are_looked_at() -> None:
    endpoint = cast(Endpoint, SimpleNamespace(epoch=1))
    ignore: Any = lambda *_: None  # noqa: E731
    members = Members(pipeline_spec(NoopLinePipelineConfig()), endpoint, 15.0, ignore, ignore, ignore)
    heard = members._heard = dict.fromkeys(range(10_000), math.inf)
    is_over = threading.Event()

    def register() -> None:
        epochs = range(len(heard), len(heard) + 100)
        while not is_over.is_set():
            for epoch in epochs:
                members._heard[epoch] = math.inf
            for epoch in epochs:
                members._heard.pop(epoch, None)

    other = threading.Thread(target=register)
    with threads_change_often():
        other.start()
        try:
            for _ in range(10):
                for _ in range(300):
                    Garbage()
                members._checked -= 2 * HELD_UP
                members.check_heartbeats()
        finally:
            is_over.set()
            other.join()
    members.close()
    members.wait(0)


def test_no_process_is_dismissed_that_can_still_be_chosen(line: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    line.submit()[1].wait()
    members = line.coordinator._members
    registry = members.registry
    could_be_chosen: list[bool] = []

    def retire(epoch: int, retire: Any = registry.retire) -> None:
        members.dismiss()  # as another thread may at any moment, when a request ends
        could_be_chosen.append(registry.can_serve({"b"}))
        retire(epoch)
        could_be_chosen.append(registry.can_serve({"b"}))

    monkeypatch.setattr(registry, "retire", retire)
    line.processes["b"].drain(30)
    assert could_be_chosen == [True, False]
