"""Replicas of a process: each request stays with those chosen for it, and the death of one is no other's matter."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.config.schema import PipelineConfig, StageConfig
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.pipeline.requests import RequestState
from omni_python.pipeline.spec import Limits
from omni_python.proto.errors import Cancelled, Unavailable
from omni_python.proto.payload import Payload, TextOutput
from omni_python.proto.request import OmniRequest
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.simple import SimpleScheduler
from tests.pipeline.harness import Pipeline, Sink, held_up, running
from tests.waiting import wait_until

HERE = "tests.pipeline.test_replicas"
LONG = {"chunks": 1_000_000, "chunk_bytes": 8}


def replicated(config: PipelineConfig, **replicas: int) -> PipelineConfig:
    """The pipeline with that many replicas of each stage named."""
    return config.changed(
        stages=[stage.model_copy(update={"replicas": replicas.get(stage.name, 1)}) for stage in config.stages]
    )


def wait_registered(pipeline: Pipeline) -> None:
    """Until all replicas can be chosen."""
    end = time.monotonic() + 5
    registry = pipeline.coordinator._registry

    def ready() -> int:
        with registry._lock:
            return sum(len(registry._ready(process)) for process in pipeline.coordinator.spec.stages)

    while ready() < len(pipeline.processes):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def forward(directory: Path) -> Iterator[Pipeline]:
    with running(replicated(NoopForwardPipelineConfig(), a=2, b=3), directory) as pipeline:
        wait_registered(pipeline)
        yield pipeline


def loads(pipeline: Pipeline) -> dict[tuple[str, int], int]:
    return {(load.process, load.replica): load.requests for load in pipeline.coordinator.replica_loads()}


def trace(sink: Sink) -> tuple[str, int]:
    """The one pair of replicas that made all chunks, and how many these were."""
    chunks, _ = sink.wait(30)
    pairs = Counter(word for chunk in chunks if isinstance(chunk, TextOutput) for word in chunk.text.split())
    [(pair, count)] = pairs.items()
    return pair, count


def test_each_request_stays_with_its_replicas_and_they_share_evenly(forward: Pipeline) -> None:
    sizes = [random.randrange(1, 200) for _ in range(64)]
    sinks = [forward.submit(chunks=size, chunk_bytes=random.choice((8, 30_000)), tell_makers=True)[1] for size in sizes]
    traced = [trace(sink) for sink in sinks]
    assert [count for _, count in traced] == sizes
    pairs = Counter(pair for pair, _ in traced)
    assert len(pairs) == 6, "every source and every sink took part"
    accepted = {name: stage.accepted for name, p in forward.processes.items() for stage in p.stages.values()}
    assert sum(accepted[f"a@{i}"] for i in range(2)) == sum(accepted[f"b@{i}"] for i in range(3)) == 64
    assert all(accepted[f"b@{i}"] > 8 for i in range(3)), accepted
    forward.wait_empty()


def test_new_requests_go_to_the_least_loaded(forward: Pipeline) -> None:
    held = [forward.submit(**LONG) for _ in range(6)]
    end = time.monotonic() + 5
    while sum(loads(forward).values()) < 12 and time.monotonic() < end:
        time.sleep(0.01)
    assert loads(forward) == {("a", 0): 3, ("a", 1): 3, ("b", 0): 2, ("b", 1): 2, ("b", 2): 2}
    for request_id, _ in held:
        forward.coordinator.abort(request_id)
    forward.wait_empty()
    assert set(loads(forward).values()) == {0}


def test_an_abort_goes_to_the_replicas_of_its_request_alone(forward: Pipeline) -> None:
    aborted: list[str] = []
    for name, process in forward.processes.items():
        for stage in process.stages.values():

            def note(request_id: str, name: str = name, abort: Any = stage.abort) -> None:
                aborted.append(name)
                abort(request_id)

            stage.abort = note  # type: ignore[method-assign]
    request_id, sink = forward.submit(**LONG)
    assert isinstance(sink.events.get(timeout=5)[1], TextOutput)
    route = {(load.process, load.replica) for load in forward.coordinator.replica_loads() if load.requests}
    forward.coordinator.abort(request_id)
    with pytest.raises(Cancelled):
        sink.wait()
    forward.wait_empty()
    assert sorted(aborted) == sorted(f"{process}@{replica}" for process, replica in route) and len(aborted) == 2


def test_the_death_of_one_replica_ends_its_requests_alone(forward: Pipeline) -> None:
    sinks = [forward.submit(chunks=3000, chunk_bytes=8, tell_makers=True)[1] for _ in range(12)]
    end = time.monotonic() + 5
    while sum(loads(forward).values()) < 24 and time.monotonic() < end:
        time.sleep(0.001)
    members = forward.coordinator._members
    dead = forward.processes.pop("b@1")
    [peer] = [peer for peer in members.registry.peers() if (peer.process, peer.replica) == ("b", 1)]
    doomed = loads(forward)["b", 1]
    members.lose(peer.epoch, "died")
    new = [forward.submit(chunks=10, tell_makers=True)[1] for _ in range(9)]
    failed = 0
    for sink in sinks:
        try:
            assert trace(sink)[1] == 3000
        except Unavailable as error:
            assert str(error) == "process b@1 (stages b) died"
            failed += 1
    assert failed <= doomed
    assert len({trace(sink)[0].split(">")[1] for sink in new}) == 2
    forward.wait_empty()
    dead.stop()


def test_random_aborts_leave_nothing_behind(forward: Pipeline) -> None:
    rng = random.Random()
    sinks = []
    for _ in range(120):
        request_id, sink = forward.submit(
            chunks=rng.randrange(2000), chunk_bytes=rng.choice((8, 40_000)), tell_makers=True
        )
        sinks.append(sink)
        threading.Timer(rng.random() * 0.05, forward.coordinator.abort, (request_id,)).start()
        time.sleep(0.002)
    for sink in sinks:
        try:
            chunks, _ = sink.wait(30)
        except Cancelled:
            continue
        assert len({word for chunk in chunks if isinstance(chunk, TextOutput) for word in chunk.text.split()}) <= 1
    forward.wait_empty()
    assert forward.coordinator.finished[RequestState.FAILED] == 0


def test_without_any_replica_requests_wait_and_then_say_what_is_missing(directory: Path) -> None:
    config = replicated(NoopLinePipelineConfig(), b=2)
    with running(config, directory, Limits(grace=0.3)) as pipeline:
        wait_registered(pipeline)
        registry = pipeline.coordinator._registry
        for name in ("b@0", "b@1"):
            pipeline.submit()[1].wait()
            process = pipeline.processes.pop(name)
            process.stop()
            registry.remove(process._endpoint.epoch)
        with pytest.raises(Unavailable, match="noop_line that are not running: b$"):
            pipeline.submit()[1].wait()


def test_a_process_is_given_up_with_the_last_of_its_replicas(directory: Path) -> None:
    with running(replicated(NoopLinePipelineConfig(), b=2), directory) as pipeline:
        wait_registered(pipeline)
        pipeline.coordinator.give_up("b", 0, "it died too often")
        pipeline.submit()[1].wait()
        pipeline.coordinator.give_up("b", 1, "it cannot be loaded")
        with pytest.raises(Unavailable, match="process b of noop_line: it cannot be loaded"):
            pipeline.submit()[1].wait()


def test_an_unloaded_replica_ends_what_it_has_and_gets_nothing_new(directory: Path) -> None:
    with running(replicated(NoopLinePipelineConfig(), b=2), directory) as pipeline:
        wait_registered(pipeline)
        leaving = pipeline.processes.pop("b@0")
        with held_up("b"):
            first = [pipeline.submit()[1] for _ in range(2)]
            wait_until(lambda: leaving.stages["b"].stats()["running"] == 1)
            drained = threading.Thread(target=leaving.drain, args=(20.0,))
            drained.start()
            wait_until(lambda: leaving._endpoint.epoch in pipeline.coordinator._registry._retired)
            later = [pipeline.submit(nbytes=100)[1] for _ in range(4)]
        for sink in first + later:
            sink.wait()
        drained.join()
        assert leaving.stages["b"].accepted == 1 and pipeline.processes["b@1"].stages["b"].accepted == 5
        leaving.stop()


class Marked(Payload):
    """Text that says which schedulers it went through."""

    names: list[str]


def _stage(kind: str, merged: bool = False) -> Scheduler:
    name = f"{kind}{np.random.default_rng().integers(1 << 40):x}"

    def compute(item: OmniRequest | Marked) -> Marked:
        return Marked([*(item.names if isinstance(item, Marked) else []), name])

    return SimpleScheduler(compute)


def create_split() -> Scheduler:
    return _stage("split")


def create_part() -> Scheduler:
    return _stage("part")


def create_join() -> Scheduler:
    return _stage("join")


def create_end() -> Scheduler:
    def compute(item: Marked) -> TextOutput:
        return TextOutput(" ".join(item.names), "stop")

    return SimpleScheduler(compute)


def merge(parts: dict[str, Marked]) -> Marked:
    return Marked([name for part in parts.values() for name in part.names])


def test_all_parts_of_a_fan_in_meet_in_one_replica(directory: Path) -> None:
    """Parts that went to different replicas would wait for each other for ever."""
    stages = [
        StageConfig(name="split", process="split", factory=f"{HERE}.create_split", next=["x", "y", "join"], replicas=2),
        StageConfig(name="x", process="x", factory=f"{HERE}.create_part", next="join", replicas=3),
        StageConfig(name="y", process="y", factory=f"{HERE}.create_part", next="join", replicas=2),
        StageConfig(
            name="join",
            process="join",
            factory=f"{HERE}.create_join",
            wait_for=["split", "x", "y"],
            merge_fn=f"{HERE}.merge",
            next="end",
            replicas=3,
        ),
        StageConfig(name="end", process="end", factory=f"{HERE}.create_end", terminal=True),
    ]
    config = PipelineConfig(name="fan", model_path="none", stages=stages)
    with running(config, directory) as pipeline:
        wait_registered(pipeline)
        sinks = [pipeline.submit()[1] for _ in range(60)]
        seen: set[str] = set()
        for sink in sinks:
            _, results = sink.wait()
            [output] = results.values()
            assert isinstance(output, TextOutput)
            names = output.text.split()
            assert [name.rstrip("0123456789abcdef") for name in names].count("split") == 3
            assert len({name for name in names if name.startswith("split")}) == 1
            seen.update(names)
        assert len(seen) == 2 + 3 + 2 + 3
        pipeline.wait_empty()
