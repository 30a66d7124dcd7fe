"""The threads that nothing would keep deadlines, heartbeats and signs of life without go on where a look fails."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from omni_python.control import safely
from omni_python.control.liveness import read_life_signs
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.pipeline import membership, watcher
from omni_python.pipeline.deadlines import DeadlineWatch
from omni_python.pipeline.requests import Request, Requests, RequestState
from omni_python.pipeline.spec import Limits
from omni_python.pipeline.watcher import Watcher
from omni_python.proto.errors import DeadlineExceeded, OmniError
from tests.pipeline.harness import Sink, running
from tests.waiting import wait_until


class BadMembers:
    """Fails whatever is asked of it, each for the first few times."""

    def __init__(self) -> None:
        self.closed = False
        self.calls = {"wait": 0, "check_heartbeats": 0, "is_complete": 0}

    def wait(self, timeout: float) -> None:
        self._fail("wait")
        threading.Event().wait(timeout)

    def check_heartbeats(self) -> None:
        self._fail("check_heartbeats")

    def is_complete(self) -> bool:
        self._fail("is_complete")
        return True

    def _fail(self, what: str) -> None:
        self.calls[what] += 1
        if self.calls[what] <= 3:
            raise RuntimeError(f"a bug in {what}")


class BadSink(Sink):
    def is_cancelled(self) -> bool:
        raise RuntimeError("a bug in is_cancelled")


def test_the_watcher_goes_on_where_a_look_fails(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(safely, "PAUSE", 0.01)
    monkeypatch.setattr(watcher, "PERIOD", 0.05)
    requests = Requests(Limits(), lambda trace: None, lambda: None, lambda request: None)
    ended: dict[str, OmniError] = {}
    relieved = threading.Semaphore(0)

    def end(request: Request, state: RequestState, error: OmniError) -> None:
        requests.finish(request, state)
        ended[request.id] = error
        if request.id == "bad end":
            raise RuntimeError("a bug in what ends requests")

    def relieve() -> None:
        relieved.release()
        raise RuntimeError("a bug in relieve")

    for name, sink, deadline in (("bad sink", BadSink(), 1e9), ("bad end", Sink(), 1.0), ("late", Sink(), 1.0)):
        nobody: frozenset[str] = frozenset()
        requests.admit(Request(name, sink, nobody, nobody, 0.0, deadline, None, True, None), 60)
    members: Any = BadMembers()
    watching = Watcher("line", directory, os.getpid(), requests, members, end, relieve)
    watching.start()
    try:
        for _ in range(5):
            assert relieved.acquire(timeout=20)
        wait_until(lambda: set(ended) == {"bad end", "late"})
        wait_until(lambda: "line" in read_life_signs(directory))
    finally:
        members.closed = True
        watching.join()
    assert all(isinstance(error, DeadlineExceeded) for error in ended.values())
    assert all(count > 3 for count in members.calls.values())
    for bug in ("wait", "check_heartbeats", "is_complete", "is_cancelled", "what ends requests", "relieve"):
        assert f"a bug in {bug}" in caplog.text


def test_deadlines_are_kept_after_one_that_could_not_be_told(caplog: pytest.LogCaptureFixture) -> None:
    expired: list[str] = []

    def end(stage: str, request_id: str) -> None:
        expired.append(request_id)
        if len(expired) == 1:
            raise RuntimeError("a bug in what ends requests")

    watch = DeadlineWatch(end)
    watch.start()
    try:
        now = time.monotonic()
        for n in range(3):
            watch.add("s", f"r{n}", now + 0.01 * n)
        wait_until(lambda: expired == ["r0", "r1", "r2"])
    finally:
        watch.stop()
    assert "could not end request r0" in caplog.text and "a bug in what ends requests" in caplog.text


def test_deadlines_are_kept_beside_one_further_off_than_a_thread_can_wait() -> None:
    expired: list[str] = []
    watch = DeadlineWatch(lambda stage, request_id: expired.append(request_id))
    watch.add("s", "far", time.monotonic() + 1e10)
    watch.start()
    try:
        watch.add("s", "near", time.monotonic())
        wait_until(lambda: expired == ["near"])
        assert len(watch) == 1
    finally:
        watch.stop()


def test_a_process_stays_registered_where_a_registration_fails(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership, "PAUSE", 0.01)
    monkeypatch.setattr(membership, "HEARTBEAT", 0.05)
    with running(NoopLinePipelineConfig(), directory) as pipeline:
        pipeline.submit()[1].wait()
        member = pipeline.processes["b"]._membership
        register = member._register
        calls: list[None] = []

        def fail_at_first() -> None:
            calls.append(None)
            if len(calls) <= 3:
                raise RuntimeError("a bug in what registers")
            register()

        monkeypatch.setattr(member, "_register", fail_at_first)
        wait_until(lambda: len(calls) > 5)
        assert member.is_registered
        pipeline.submit()[1].wait()
    assert "a bug in what registers" in caplog.text
