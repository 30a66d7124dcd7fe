"""Requests on their way to the entry stage, where some of the processes that they need are not there."""

from __future__ import annotations

import gc
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.config.schema import PipelineConfig, StageConfig
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.models.noop.payloads import Block
from omni_python.pipeline.requests import RequestState
from omni_python.pipeline.spec import Limits
from omni_python.proto.errors import Cancelled, Unavailable
from omni_python.proto.request import ImagePart, Message, OmniRequest
from tests.pipeline.harness import Pipeline, Sink, running
from tests.waiting import wait_until

HERE = "tests.pipeline.test_submission"
STAGES = "omni_python.models.noop.stages"

LONG = 60.0
"""Seconds of grace that no test waits for."""


def terminals(request: OmniRequest) -> list[str]:
    return ["speech" if request.sampling.get("timed") else "text"]


def route(request_id: str, block: Block) -> list[str]:
    return ["speech" if block.params.timed else "text"]


class ForkPipelineConfig(PipelineConfig):
    """`a` and `text` are in one process, and `speech`, which only `timed` requests need, is in another."""

    name: str | None = "fork"
    model_path: str = "none"
    terminal_stages_fn: str | None = f"{HERE}.terminals"
    stages: list[StageConfig] = [
        StageConfig(
            name="a", process="a", factory=f"{STAGES}.create_source", next=["text", "speech"], route_fn=f"{HERE}.route"
        ),
        StageConfig(name="text", process="a", factory=f"{STAGES}.create_sink", terminal=True),
        StageConfig(name="speech", process="s", factory=f"{STAGES}.create_sink", terminal=True),
    ]


@contextmanager
def without_speech(**limits: Any) -> Iterator[Pipeline]:
    """One submit thread, and nothing new for the process of `speech`."""
    limit = Limits(submit_threads=1, **limits)
    with (
        tempfile.TemporaryDirectory(prefix="omni-test-") as path,  # pytest's own paths are too long for sockets
        running(ForkPipelineConfig(), Path(path), limit) as pipeline,
    ):
        registry = pipeline.coordinator._registry
        wait_until(lambda: registry.can_serve({"a", "s"}))
        registry.retire(pipeline.processes["s"]._endpoint.epoch)
        yield pipeline


def submit_media(pipeline: Pipeline, **sampling: Any) -> tuple[str, Sink, weakref.ref[np.ndarray]]:
    """A request with an image, which is watched."""
    image = np.zeros(100_000, np.uint8)
    sink = Sink()
    asked = OmniRequest([Message("user", [ImagePart(image)])], sampling=sampling)
    return pipeline.coordinator.submit(asked, sink), sink, weakref.ref(image)


def is_gone(watched: weakref.ref[np.ndarray]) -> bool:
    gc.collect()
    return watched() is None


def test_requests_wait_behind_none_whose_processes_are_not_there() -> None:
    """Neither those with media nor those that had to wait for their turn; both come by the one thread."""
    with without_speech(grace=LONG, max_in_flight=4) as pipeline:
        waiting = [pipeline.submit(timed=True)[0] for _ in range(3)]
        submit_media(pipeline)[1].wait(30)
        _, first = pipeline.submit(delay=0.2, delay_stage="a")
        _, second = pipeline.submit()
        first.wait(30)
        second.wait(30)
        requests = [pipeline.coordinator._requests.get(request_id) for request_id in waiting]
        assert [request and request.state for request in requests] == [RequestState.PENDING] * 3


def test_all_that_wait_for_a_process_are_refused_when_their_grace_is_over() -> None:
    with without_speech(grace=1.0) as pipeline:
        start = time.monotonic()
        sinks = [pipeline.submit(timed=True)[1] for _ in range(30)]
        for sink in sinks:
            with pytest.raises(Unavailable, match="fork that are not running: s$"):
                sink.wait()
        assert 1.0 <= time.monotonic() - start < 10.0, "one after the other would take 30 s"
        pipeline.wait_empty()


def test_those_that_have_ended_wait_no_more_and_let_go_of_their_media() -> None:
    with without_speech(grace=LONG) as pipeline:
        submitter = pipeline.coordinator._submitter
        given = [submit_media(pipeline, timed=True) for _ in range(3)]
        wait_until(lambda: len(submitter._aside) == 3)
        for request_id, sink, image in given:
            pipeline.coordinator.abort(request_id)
            with pytest.raises(Cancelled):
                sink.wait()
            wait_until(lambda image=image: is_gone(image))  # type: ignore[misc]
        assert not submitter._aside
        pipeline.wait_empty()


def test_those_that_end_before_a_thread_takes_them_let_go_of_their_media(monkeypatch: pytest.MonkeyPatch) -> None:
    with without_speech() as pipeline:
        carrier, go, packs = pipeline.coordinator._carrier, threading.Event(), threading.Event()

        def pack(*given: Any, pack: Any = carrier.pack) -> Any:
            packs.set()
            assert go.wait(30)
            return pack(*given)

        monkeypatch.setattr(carrier, "pack", pack)
        _, first, _ = submit_media(pipeline)
        assert packs.wait(30)
        second_id, second, image = submit_media(pipeline)
        pipeline.coordinator.abort(second_id)
        with pytest.raises(Cancelled):
            second.wait()
        wait_until(lambda: is_gone(image))
        assert not pipeline.coordinator._submitter._threads._requests
        go.set()
        first.wait()
        pipeline.wait_empty()


def test_one_that_ends_while_it_is_set_aside_is_let_go_of() -> None:
    """It is withdrawn before it is there."""
    with without_speech(grace=LONG) as pipeline:
        submitter = pipeline.coordinator._submitter
        request_id, sink = pipeline.submit(timed=True)
        wait_until(lambda: submitter._aside)
        [request] = submitter._aside.values()
        pipeline.coordinator.abort(request_id)
        with pytest.raises(Cancelled):
            sink.wait()
        submitter._aside[request_id] = request
        wait_until(lambda: not submitter._aside)


def test_a_process_that_dies_once_it_is_chosen_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is sent to it before the others know is lost without a word."""
    with (
        tempfile.TemporaryDirectory(prefix="omni-test-") as path,
        running(NoopLinePipelineConfig(), Path(path)) as pipeline,
    ):
        pipeline.submit()[1].wait()
        coordinator, lost = pipeline.coordinator, pipeline.processes["c"]
        lost._membership.stop()
        pipeline.submit()[1].wait()  # and with its answer all that `lost` has sent before, its heartbeats

        def assign(*given: Any, assign: Any = coordinator._requests.assign) -> Any:
            coordinator._members.lose(lost._endpoint.epoch, "died")
            return assign(*given)

        monkeypatch.setattr(coordinator._requests, "assign", assign)
        with pytest.raises(Unavailable, match="noop_line that are gone: c$"):
            pipeline.submit(deadline=LONG)[1].wait(30)
        pipeline.wait_empty()
