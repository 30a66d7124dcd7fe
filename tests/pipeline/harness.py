"""Runs a whole pipeline with real sockets and real shared memory; only Triton is not there."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omni_python.config.schema import PipelineConfig
from omni_python.config.topology import resolve_topology
from omni_python.models.noop import stages as noop_stages
from omni_python.models.noop.payloads import NoopParams
from omni_python.pipeline.build import build_stages, pipeline_spec
from omni_python.pipeline.coordinator import Coordinator
from omni_python.pipeline.spec import Limits
from omni_python.pipeline.stage_process import StageProcess
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload
from omni_python.proto.request import Message, OmniRequest, TextPart
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import Trace
from omni_python.relay.base import RelaySettings

POOL = 4 << 20
"""Bytes of each process's relay pool."""


@dataclass
class Sink:
    """Collects one request's answer."""

    events: queue.SimpleQueue[tuple[str, Any]] = field(default_factory=queue.SimpleQueue)
    cancelled: bool = False
    timings: dict[str, StageTiming] = field(default_factory=dict)
    trace_id: str = ""
    trace: Trace | None = None

    def traced(self, trace_id: str) -> None:
        self.trace_id = trace_id

    def chunk(self, payload: Payload) -> None:
        self.events.put(("chunk", payload))

    def result(self, stage: str, payload: Payload) -> None:
        self.events.put((stage, payload))

    def finish(self, timings: Sequence[StageTiming], trace: Trace | None = None) -> None:
        self.trace = trace
        self.timings = {timing.stage: timing for timing in timings}
        self.events.put(("finish", None))

    def fail(self, error: OmniError) -> None:
        self.events.put(("fail", error))

    def is_cancelled(self) -> bool:
        return self.cancelled

    def wait(self, timeout: float = 10.0) -> tuple[list[Payload], dict[str, Payload]]:
        """The chunks and the results; raises the request's error."""
        chunks: list[Payload] = []
        results: dict[str, Payload] = {}
        while True:
            kind, value = self.events.get(timeout=timeout)
            match kind:
                case "chunk":
                    chunks.append(value)
                case "fail":
                    raise value
                case "finish":
                    return chunks, results
                case stage:
                    results[stage] = value


@dataclass
class Pipeline:
    coordinator: Coordinator
    processes: dict[str, StageProcess]
    """By process; replicas as `b@1`."""

    def submit(self, deadline: float | None = None, **sampling: Any) -> tuple[str, Sink]:
        sink = Sink()
        return self.coordinator.submit(request(**sampling), sink, deadline), sink

    def held(self) -> dict[str, int]:
        """Everything that is held anywhere, by name; only what is not zero."""
        counts = {f"coordinator.{name}": count for name, count in self.coordinator.stats().items()}
        for name, process in self.processes.items():
            counts[f"{name}.relay_slots"] = process.relay_slots_in_use
            counts[f"{name}.routes"] = process.routes_held
            for stage in process.stages.values():
                counts.update({f"{name}.{stage.spec.name}.{what}": count for what, count in stage.stats().items()})
        return {name: count for name, count in counts.items() if count}

    def wait_empty(self, timeout: float = 5.0) -> None:
        end = time.monotonic() + timeout
        while (held := self.held()) and time.monotonic() < end:
            time.sleep(0.005)
        assert held == {}


@contextmanager
def held_up(name: str) -> Iterator[threading.Event]:
    """Requests stay in the no-op stage of this name until the body ends, or sets the event that it gets: however late
    the machine lets threads go on, what is looked at meanwhile is as it was."""
    go = threading.Event()
    act = noop_stages._act

    def wait_and_act(stage: str, params: NoopParams) -> None:
        assert stage != name or go.wait(60)
        act(stage, params)

    noop_stages._act = wait_and_act
    try:
        yield go
    finally:
        go.set()
        noop_stages._act = act


def request(**sampling: Any) -> OmniRequest:
    return OmniRequest([Message("user", [TextPart("hello")])], sampling=sampling, stream=True)


@contextmanager
def running(
    config: PipelineConfig, directory: Path, limits: Limits | None = None, relay_backend: str | None = None
) -> Iterator[Pipeline]:
    """`relay_backend`: as if each process were on a host of its own, so that payloads go over this backend."""
    topology = resolve_topology(config)
    relay = RelaySettings(relay_backend or "shm", POOL)

    def host(process: str) -> str | None:
        return None if relay_backend is None else f"host of {process}"

    processes = {
        group.replica_name(replica): StageProcess(
            config.resolved_name,
            group.name,
            build_stages(config, group.name, directory, replica),
            directory,
            relay,
            host(group.replica_name(replica)),
            replica,
        )
        for group in topology.groups
        for replica in range(group.replicas)
    }
    coordinator = Coordinator(pipeline_spec(config), directory, relay, limits=limits, host=host("coordinator"))
    for process in processes.values():
        process.start()
    coordinator.start()
    try:
        yield Pipeline(coordinator, processes)
    finally:
        coordinator.stop()
        for process in processes.values():
            process.stop()
