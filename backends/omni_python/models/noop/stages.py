"""Stage factories of the no-op pipelines."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from omni_python.models.noop.payloads import Block, NoopParams
from omni_python.proto.payload import TextOutput
from omni_python.proto.request import OmniRequest
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.loop import LoopScheduler
from omni_python.scheduling.simple import SimpleScheduler


@functools.cache
def _pattern(nbytes: int) -> np.ndarray:
    """uint8 [nbytes], counting up; made once a size, so that only the runtime's own work is measured."""
    return np.arange(nbytes, dtype=np.uint64).astype(np.uint8)


class NoopFailure(RuntimeError):
    """The failure that a client asked for."""


def create_source() -> Scheduler:
    """Entry stage "a": OmniRequest -> Block of the size asked for."""

    def compute(request: OmniRequest) -> Block:
        params = NoopParams.of(request)
        _act("a", params)
        return Block(params, _pattern(params.nbytes), time.monotonic())

    return SimpleScheduler(compute)


def create_pass(stage: str = "b", abort_log: str | None = None) -> Scheduler:
    """A middle stage: Block -> the same Block. `abort_log` names a file to which aborts are written as they arrive."""

    def compute(block: Block) -> Block:
        _act(stage, block.params)
        return block

    return SimpleScheduler(compute) if abort_log is None else _AbortLogger(compute, Path(abort_log))


def create_sink(stage: str = "c") -> Scheduler:
    """A terminal stage: Block -> its size and last byte as JSON text, and the time that it took to come if asked."""

    def compute(block: Block) -> TextOutput:
        taken = time.monotonic() - block.sent
        _act(stage, block.params)
        last = int(block.data[-1]) if len(block.data) else 0
        report: dict[str, float] = {"nbytes": len(block.data), "last": last}
        if block.params.timed:
            report["two_edges_us"] = taken * 1e6
        return TextOutput(msgspec.json.encode(report).decode(), "stop")

    return SimpleScheduler(compute)


def create_alone() -> Scheduler:
    """Entry and terminal stage of a line of one: OmniRequest -> what `create_sink` says of a block of the size."""

    def compute(request: OmniRequest) -> TextOutput:
        data = _pattern(NoopParams.of(request).nbytes)
        report = {"nbytes": len(data), "last": int(data[-1]) if len(data) else 0}
        return TextOutput(msgspec.json.encode(report).decode(), "stop")

    return SimpleScheduler(compute)


def create_chunk_source(target: str = "b") -> Scheduler:
    """Entry stage "a" of the streaming pipelines: OmniRequest -> chunks to `target`, then an empty Block."""
    return _ChunkSource(target)


def create_chunk_sink(forward: bool = False) -> Scheduler:
    """Terminal stage "b": counts chunks, or with `forward` sends each on to the client as text."""
    return _ChunkSink(forward)


def _act(stage: str, params: NoopParams) -> None:
    if params.delay and params.delay_stage == stage:
        time.sleep(params.delay)
    if params.fail_stage == stage:
        raise NoopFailure(f"stage {stage} fails, as asked")


class _AbortLogger(SimpleScheduler):
    """Appends the time of each abort, seconds of the system's monotonic clock, to a file."""

    def __init__(self, compute: Callable[[Block], Block], log: Path) -> None:
        super().__init__(compute)
        self._log = log

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        with self._log.open("a") as file:
            file.write(f"{time.monotonic()}\n")


def _own_name(scheduler: Scheduler) -> str:
    """Tells it from all others of this host."""
    return f"{os.getpid()}.{id(scheduler):x}"


class _ChunkSource(LoopScheduler):
    """A step makes a chunk of each request, as a model does that computes all its requests at once."""

    sends_itself = True

    def __init__(self, target: str) -> None:
        super().__init__("noop-source")
        self._maker = _own_name(self)
        self._target = target
        self._streams: dict[str, Iterator[OutgoingMessage]] = {}

    def stats(self) -> Mapping[str, int]:
        return {"running": len(self._streams)}

    def take(self, message: IncomingMessage) -> None:
        params = NoopParams.of(message.data)
        self.on_began(message.request_id)
        _act("a", params)
        self._streams[message.request_id] = self._stream(message.request_id, params)

    def drop(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    def work(self) -> bool:
        if streams := list(self._streams.items()):
            self.batch_sizes.observe(len(streams))
        for request_id, stream in streams:
            message = next(stream)
            if message.type == "result":
                self.drop(request_id)
            self.outbox.put(message)
        return bool(streams)

    def _stream(self, request_id: str, params: NoopParams) -> Iterator[OutgoingMessage]:
        data = _pattern(params.chunk_bytes)
        for _ in range(params.chunks):
            yield OutgoingMessage(request_id, "stream", Block(params, data, maker=self._maker), self._target)
        yield OutgoingMessage(request_id, "result", Block(params, np.empty(0, np.uint8), maker=self._maker))


class _ChunkSink(LoopScheduler):
    """A request is over when both its stream and its result have come, in either order."""

    def __init__(self, forward: bool) -> None:
        super().__init__("noop-sink")
        self._name = _own_name(self)
        self._forward = forward
        self._counts: dict[str, int] = {}
        self._ends: dict[str, int] = {}

    def stats(self) -> Mapping[str, int]:
        return {"streams": len(self._counts)}

    def drop(self, request_id: str) -> None:
        self._counts.pop(request_id, None)
        self._ends.pop(request_id, None)

    def take(self, message: IncomingMessage) -> None:
        request_id = message.request_id
        count = self._counts.setdefault(request_id, 0)
        if message.type == "stream_chunk":
            self._counts[request_id] = count + 1
            if self._forward:
                block = message.data
                text = f"{block.maker}>{self._name} " if block.params.tell_makers else "x" * len(block.data)
                self.outbox.put(OutgoingMessage(request_id, "stream", TextOutput(text)))
            return
        self._ends[request_id] = self._ends.get(request_id, 0) + 1
        if self._ends[request_id] == 2:
            self.drop(request_id)
            self.outbox.put(OutgoingMessage(request_id, "result", TextOutput(f'{{"chunks":{count}}}', "stop")))
