"""A process that sends requests and notes what comes back when, told by pipe what to send."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized

import msgspec

from omni_python.bench.dataset import Question
from omni_python.bench.record import Piece, RequestRecord
from omni_python.client import AsyncOmniClient, AudioChunk, Finished, OmniClientError, TextDelta

_HEARTBEAT_S = 0.05
_PAUSE_S = 0.1  # of a closed loop's client after an error, which a server that is not there gives at once


@dataclass(frozen=True)
class Share:
    """One process's part of a load, which starts at `origin`, in seconds of the host's monotonic clock.

    Closed loop: `clients` ask until `limit` requests were sent by all processes, or `seconds` have passed since the
    first counted one. Open loop: `arrivals` are the numbers and times of the requests. Those below `warm_up` are not
    counted."""

    name: str
    origin: float
    warm_up: int
    seconds: float
    limit: int | None
    clients: int
    arrivals: Sequence[tuple[int, float]]
    timeout: float
    seed: int


@dataclass(frozen=True)
class Counters:
    """What the processes of a load share: the number of the next request, and when the first counted one was sent
    (seconds of the monotonic clock; 0 before)."""

    next: Synchronized[int]
    counting_since: Synchronized[float]


class ShareDone(msgspec.Struct, tag="done"):
    """A process's last word on a load: how late, in seconds, its clock's ticks were seen."""

    lateness: list[float]


FromWorker = RequestRecord | ShareDone
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(FromWorker).decode


def work(connection: Connection, counters: Counters, url: str, pipeline: str, questions: Sequence[Question]) -> None:
    """The process: says when it is ready, and takes `Share`s until the pipe closes; None ends the one that runs."""
    with contextlib.suppress(asyncio.CancelledError, BrokenPipeError):
        asyncio.run(_serve(connection, counters, url, pipeline, questions))


async def _serve(
    connection: Connection, counters: Counters, url: str, pipeline: str, questions: Sequence[Question]
) -> None:
    inbox: asyncio.Queue[Share | None] = asyncio.Queue()
    loop, serving = asyncio.get_running_loop(), asyncio.current_task()
    assert serving is not None

    def receive() -> None:
        try:
            inbox.put_nowait(connection.recv())
        except EOFError:
            loop.remove_reader(connection.fileno())
            serving.cancel()

    loop.add_reader(connection.fileno(), receive)
    async with AsyncOmniClient(url, pipeline) as client:
        await client.is_ready()  # connected: the first request does not wait for that
        connection.send_bytes(encode(ShareDone([])))
        while True:
            share = await inbox.get()
            if share is None:
                continue
            sender = _Sender(connection, counters, client, questions, share)
            running, stopped = asyncio.ensure_future(sender.run()), asyncio.ensure_future(inbox.get())
            await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait((running,))
            if not running.cancelled():
                running.result()
            connection.send_bytes(encode(ShareDone(sender.lateness)))


class _Sender:
    def __init__(
        self,
        connection: Connection,
        counters: Counters,
        client: AsyncOmniClient,
        questions: Sequence[Question],
        share: Share,
    ) -> None:
        self._connection = connection
        self._counters = counters
        self._client = client
        self._questions = questions
        self._order = random.Random(share.seed).sample(range(len(questions)), len(questions))
        self._share = share
        self.lateness: list[float] = []

    async def run(self) -> None:
        heart = asyncio.ensure_future(self._beat())
        try:
            await asyncio.sleep(self._share.origin - time.monotonic())
            async with asyncio.TaskGroup() as group:
                for _ in range(self._share.clients):
                    group.create_task(self._ask_again_and_again())
                for index, due in self._share.arrivals:
                    await asyncio.sleep(due - self._now())
                    group.create_task(self._ask(index, due))
        finally:
            heart.cancel()

    async def _ask_again_and_again(self) -> None:
        for index in self._numbers():
            record = await self._ask(index, self._now())
            if record.error:
                await asyncio.sleep(_PAUSE_S)

    def _numbers(self) -> Iterator[int]:
        share, counters = self._share, self._counters
        while True:
            since = counters.counting_since.value
            if since and time.monotonic() - since >= share.seconds:
                return
            with counters.next.get_lock():
                index = counters.next.value
                counters.next.value = index + 1
            if share.limit is not None and index >= share.limit:
                return
            yield index

    async def _ask(self, index: int, due: float) -> RequestRecord:
        share = self._share
        question = self._order[index % len(self._order)]
        if index == share.warm_up:
            self._counters.counting_since.value = time.monotonic()
        record = RequestRecord(
            load=share.name, index=index, question=question, counted=index >= share.warm_up, due=due, sent=self._now()
        )
        try:
            async with asyncio.timeout(share.timeout):
                await self._read(self._questions[question], record)
        except TimeoutError:
            record.error, record.message = "Timeout", f"not answered after {share.timeout:g} s"
        except OmniClientError as error:
            record.error, record.message = type(error).__name__, str(error)
        record.ended = self._now()
        self._connection.send_bytes(encode(record))
        return record

    async def _read(self, question: Question, record: RequestRecord) -> None:
        async with contextlib.aclosing(self._client.stream(question.text, **question.options)) as events:
            async for event in events:
                now = self._now()
                match event:
                    case TextDelta():
                        record.texts.append(now)
                    case AudioChunk(samples, rate):
                        record.speech.append(Piece(now, len(samples) / rate))
                    case Finished(finish_reason, usage, _, _, _, stages):
                        record.finish_reason, record.usage, record.stages = finish_reason, usage, list(stages)

    def _now(self) -> float:
        return time.monotonic() - self._share.origin

    async def _beat(self) -> None:
        while True:
            due = time.monotonic() + _HEARTBEAT_S
            await asyncio.sleep(_HEARTBEAT_S)
            self.lateness.append(time.monotonic() - due)
