"""The processes that send a load, and what they report."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType

from omni_python.bench.dataset import Question
from omni_python.bench.load import ClosedLoop, Load, Plan
from omni_python.bench.record import RequestRecord
from omni_python.bench.worker import Counters, Share, ShareDone, decode, work
from omni_python.proto.errors import OmniError

_HEAD_START_S = 0.1
_STOP_S = 5.0


@dataclass(frozen=True)
class LoadResult:
    """What became of a load. `origin`, from which the records' times count, and `counting_since` are seconds of the
    monotonic clock; the latter is 0 where no counted request was sent. `lateness` is by how many seconds the processes
    saw their clock's ticks late: events were, too."""

    load: Load
    records: list[RequestRecord]
    origin: float
    counting_since: float
    lateness: list[float]
    interrupted: bool


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started here never hear of a terminal's Ctrl-C, which reaches all: the parent decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerDied(OmniError):
    """A process of the load generator ended unasked; its traceback is on stderr."""


class LoadGenerator:
    """Sends loads to one pipeline from processes of its own; a context manager, which ends them.

    An answer of 60 pieces took a process 9 ms of CPU time (2026-11-28, on a busy machine, where the server took 27 ms
    for passing them on): a core makes some 100 of them a second, or 600 that come at the pace of 6 s of speech.
    """

    def __init__(self, url: str, pipeline: str, questions: Sequence[Question], processes: int) -> None:
        self.url = url
        spawn = multiprocessing.get_context("spawn")
        self._counters = Counters(spawn.Value("q", 0), spawn.Value("d", 0.0))
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        for _ in range(processes):
            ours, theirs = spawn.Pipe()
            arguments = (theirs, self._counters, url, pipeline, questions)
            process = spawn.Process(target=work, args=arguments, name="omni-bench", daemon=True)
            with _without_interrupts():
                process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
        for connection in self._connections:
            connection.recv_bytes()  # it is ready

    def sending(self, load: Load) -> int:
        """How many of the processes take part in a load."""
        return min(len(self._processes), load.concurrency) if isinstance(load, ClosedLoop) else len(self._processes)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def __enter__(self) -> LoadGenerator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(_STOP_S)
            process.kill()
            process.join()

    def run(
        self, load: Load, plan: Plan, ended: Callable[[RequestRecord], object], warmed_up: Callable[[], object]
    ) -> LoadResult:
        """Send a load and wait for the last answer; `ended` is called with each request as it ends, and `warmed_up`
        once, as soon as one has ended after the first counted one was sent.

        On KeyboardInterrupt requests in flight are cancelled, and the result has those that had ended. Raises
        `WorkerDied`.
        """
        self._counters.next.value, self._counters.counting_since.value = 0, 0.0
        records: list[RequestRecord] = []
        lateness: list[float] = []
        interrupted = warm = False
        origin = time.monotonic() + _HEAD_START_S
        busy = set(self._connections)
        for connection, share in zip(self._connections, self._shares(load, plan, origin), strict=True):
            connection.send(share)
        while busy:
            try:
                for message in self._received(busy):
                    if isinstance(message, ShareDone):
                        lateness += message.lateness
                    else:
                        records.append(message)
                        ended(message)
                if not warm and self._counters.counting_since.value:
                    warm = True
                    warmed_up()
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                for connection in busy:
                    with contextlib.suppress(OSError):
                        connection.send(None)
        since = self._counters.counting_since.value
        return LoadResult(load, records, origin, since, lateness, interrupted)

    def _received(self, busy: set[Connection]) -> Iterable[RequestRecord | ShareDone]:
        """What has come, at least one message; processes that are done leave `busy`."""
        for connection in wait(busy):
            assert isinstance(connection, Connection)
            try:
                message = decode(connection.recv_bytes())
            except EOFError:
                raise WorkerDied("a process of the load generator died") from None
            if isinstance(message, ShareDone):
                busy.discard(connection)
            yield message

    def _shares(self, load: Load, plan: Plan, origin: float) -> list[Share]:
        warm_up, count = plan.warm_up_of(load), len(self._processes)
        clients, arrivals = 0, []
        if isinstance(load, ClosedLoop):
            clients = load.concurrency
        else:
            arrivals = list(enumerate(load.arrivals(warm_up, plan.seconds, plan.requests, plan.seed)))
        return [
            Share(
                name=str(load),
                origin=origin,
                warm_up=warm_up,
                seconds=plan.seconds,
                limit=None if plan.requests is None else warm_up + plan.requests,
                clients=len(range(number, clients, count)),
                arrivals=arrivals[number::count],
                timeout=plan.timeout,
                seed=plan.seed,
            )
            for number in range(count)
        ]
