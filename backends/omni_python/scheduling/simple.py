"""The scheduler of stages that turn one input into one output: preprocessing, encoders, aggregation."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omni_python.proto.payload import Payload
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.base import Scheduler


class SimpleScheduler(Scheduler):
    """Computes requests one after the other, or in batches of what is waiting.

    Give either `compute(payload) -> payload`, or `compute_batch(payloads) -> payloads` with `max_batch_size`; a
    batch is whatever waits when the thread is free, so a lone request never waits for company. An exception fails
    its request (a batch's exception fails the batch). `workers` threads compute side by side.

    An abort drops what has not begun; what is being computed is finished and its result dropped by the stage.
    """

    def __init__(
        self,
        compute: Callable[[Any], Payload] | None = None,
        *,
        compute_batch: Callable[[Sequence[Any]], Sequence[Payload]] | None = None,
        max_batch_size: int = 1,
        workers: int = 1,
    ) -> None:
        super().__init__()
        if compute is not None and compute_batch is None:
            self._compute: Callable[[Sequence[Any]], Sequence[Payload]] = lambda payloads: [
                compute(p) for p in payloads
            ]
            self._max_batch_size = 1
        elif compute_batch is not None and compute is None:
            self._compute = compute_batch
            self._max_batch_size = max_batch_size
        else:
            raise ValueError("give either compute or compute_batch")
        self._threads = [
            threading.Thread(target=self._run, name=f"omni-simple-{n}", daemon=True) for n in range(workers)
        ]
        self._running = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for _ in self._threads:
            self.inbox.put(None)
        for thread in self._threads:
            thread.join()

    def abort(self, request_id: str) -> None:
        self.inbox.discard(request_id)

    def stats(self) -> Mapping[str, int]:
        return {"waiting": len(self.inbox), "running": self._running}

    def _run(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """One batch. A method of its own, so that no payload (and no relay slot) is held while waiting for the next."""
        message = self.inbox.get()
        if message is None:
            return False
        batch = self._fill([message])
        with self._lock:
            self._running += len(batch)
        for answer in self._answers(batch):
            self.outbox.put(answer)
        with self._lock:
            self._running -= len(batch)
        return True

    def _fill(self, batch: list[IncomingMessage]) -> list[IncomingMessage]:
        while len(batch) < self._max_batch_size:
            try:
                message = self.inbox.get_nowait()
            except queue.Empty:
                break
            if message is None:  # stop, but not before this batch is done
                self.inbox.put(None)
                break
            batch.append(message)
        return batch

    def _answers(self, batch: list[IncomingMessage]) -> list[OutgoingMessage]:
        try:
            if any(message.type != "new_request" for message in batch):
                raise TypeError("a stage that takes whole requests got a stream; its scheduler does not fit the edge")
            outputs = self._compute([message.data for message in batch])
            if len(outputs) != len(batch):
                raise RuntimeError(f"a batch of {len(batch)} gave {len(outputs)} outputs")
        except Exception as error:
            return [OutgoingMessage(message.request_id, "error", error) for message in batch]
        return [OutgoingMessage(m.request_id, "result", o) for m, o in zip(batch, outputs, strict=True)]
