"""Stage factories of the no-op pipelines."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from omni_python.models.noop.payloads import Block, NoopParams
from omni_python.proto.payload import TextOutput
from omni_python.proto.request import OmniRequest
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.cancellation import CancelToken, CancelTokens
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


class _ThreadScheduler(Scheduler):
    """One thread that handles message after message."""

    def __init__(self) -> None:
        super().__init__()
        self.name = f"{os.getpid()}.{id(self):x}"
        """Tells it from all others of this host."""
        self.tokens = CancelTokens()
        self._thread = threading.Thread(target=self._run, name="omni-noop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.tokens.cancel_all()
        self.inbox.put(None)
        self._thread.join()

    def abort(self, request_id: str) -> None:
        self.inbox.discard(request_id)
        self.tokens.cancel(request_id)

    def _run(self) -> None:
        while (message := self.inbox.get()) is not None:
            self._handle(message)
            del message  # holds a relay slot

    def _handle(self, message: IncomingMessage) -> None:
        raise NotImplementedError


class _ChunkSource(_ThreadScheduler):
    def __init__(self, target: str) -> None:
        super().__init__()
        self._target = target

    def stats(self) -> Mapping[str, int]:
        return {"running": len(self.tokens)}

    def _handle(self, message: IncomingMessage) -> None:
        token = self.tokens.open(message.request_id)
        try:
            self._stream(message.request_id, message.data, token)
        except Exception as error:
            self.outbox.put(OutgoingMessage(message.request_id, "error", error))
        finally:
            self.tokens.close(message.request_id)

    def _stream(self, request_id: str, request: OmniRequest, token: CancelToken) -> None:
        params = NoopParams.of(request)
        _act("a", params)
        data = _pattern(params.chunk_bytes)
        for _ in range(params.chunks):
            token.raise_if_cancelled()
            self.outbox.put(OutgoingMessage(request_id, "stream", Block(params, data, maker=self.name), self._target))
        self.outbox.put(OutgoingMessage(request_id, "result", Block(params, np.empty(0, np.uint8), maker=self.name)))


class _ChunkSink(_ThreadScheduler):
    """A request is over when both its stream and its result have come, in either order."""

    def __init__(self, forward: bool) -> None:
        super().__init__()
        self._forward = forward
        self._counts: dict[str, int] = {}
        self._ends: dict[str, int] = {}

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        self._counts.pop(request_id, None)
        self._ends.pop(request_id, None)

    def stats(self) -> Mapping[str, int]:
        return {"streams": len(self._counts)}

    def _handle(self, message: IncomingMessage) -> None:
        request_id = message.request_id
        count = self._counts.setdefault(request_id, 0)
        if message.type == "stream_chunk":
            self._counts[request_id] = count + 1
            if self._forward:
                block = message.data
                text = f"{block.maker}>{self.name} " if block.params.tell_makers else "x" * len(block.data)
                self.outbox.put(OutgoingMessage(request_id, "stream", TextOutput(text)))
            return
        self._ends[request_id] = self._ends.get(request_id, 0) + 1
        if self._ends[request_id] == 2:
            self._counts.pop(request_id)
            self._ends.pop(request_id)
            self.outbox.put(OutgoingMessage(request_id, "result", TextOutput(f'{{"chunks":{count}}}', "stop")))
