"""The scheduler of stages that turn one input into one output: preprocessing, encoders, aggregation."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from omni_python.proto.payload import Payload
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.cancellation import CancelToken, CancelTokens

logger = logging.getLogger(__name__)


class SimpleScheduler(Scheduler):
    """Computes requests one after the other, or in batches of what is waiting.

    Give one of `compute(payload) -> payload`; `compute_cancellable(payload, token) -> payload`, which polls the token
    between its items; or `compute_batch(payloads) -> payloads` with `max_batch_size`. A batch is whatever waits when
    the thread is free, so a lone request never waits for company. Its outputs are sent on as they come: an iterator
    need not wait for the last one. An exception fails its request; of a batch, each request that has no output yet is
    computed again alone, so that none fails by another's fault. `workers` threads compute side by side.

    An abort drops what has not begun and sets the token of what is being computed; without a token that is finished,
    and its result dropped by the stage. A batch's iterator is not asked for more once nobody is left who wants it.
    """

    sends_itself = True

    def __init__(
        self,
        compute: Callable[[Any], Payload] | None = None,
        *,
        compute_cancellable: Callable[[Any, CancelToken], Payload] | None = None,
        compute_batch: Callable[[Sequence[Any]], Iterable[Payload]] | None = None,
        max_batch_size: int = 1,
        workers: int = 1,
    ) -> None:
        super().__init__()
        given = [way for way in (compute, compute_cancellable, compute_batch) if way is not None]
        if len(given) != 1:
            raise ValueError("give one of compute, compute_cancellable and compute_batch")
        if compute is not None:
            compute_cancellable = _without_token(compute)
        self._compute_one = compute_cancellable
        self._compute_batch = compute_batch
        self._max_batch_size = max_batch_size if compute_batch is not None else 1
        self._tokens = CancelTokens()
        self._counting = threading.Lock()  # of the workers
        self._threads = [
            threading.Thread(target=self.run_to_end, args=(self._run,), name=f"omni-simple-{n}", daemon=True)
            for n in range(workers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._tokens.cancel_all()
        for _ in self._threads:
            self.inbox.put(None)
        for thread in self._threads:
            thread.join()

    def abort(self, request_id: str) -> None:
        self.inbox.discard(request_id)
        self._tokens.cancel(request_id)

    def stats(self) -> Mapping[str, int]:
        return {"waiting": len(self.inbox), "running": len(self._tokens)}

    def _run(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """One batch. A method of its own, so that no payload (and no relay slot) is held while waiting for the next."""
        message = self.inbox.get()
        if message is None:
            return False
        batch = self._fill([message])
        tokens = [self._tokens.open(message.request_id) for message in batch]
        for message in batch:
            self.on_began(message.request_id)
        with self._counting:
            self.batch_sizes.observe(len(batch))
        start = time.monotonic() if self.traces else 0.0
        for answer in self._answers(batch, tokens):
            if start and (trace := self.traces.get(answer.request_id)) is not None:
                trace.computed(start, time.monotonic(), len(batch))
            self.outbox.put(answer)
            del answer  # an error's traceback leads to this frame: the two would hold each other, and the payload
        for message in batch:
            self._tokens.close(message.request_id)
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

    def _answers(self, batch: list[IncomingMessage], tokens: list[CancelToken]) -> Iterator[OutgoingMessage]:
        answered = 0
        try:
            if any(message.type != "new_request" for message in batch):
                raise TypeError("a stage that takes whole requests got a stream; its scheduler does not fit the edge")
            outputs = iter(self._outputs([message.data for message in batch], tokens))
            for message in batch:
                if all(token.is_cancelled() for token in tokens[answered:]):
                    return  # nobody wants the others
                output = next(outputs, None)
                if output is None:
                    raise RuntimeError(f"a batch of {len(batch)} gave {answered} outputs")
                yield OutgoingMessage(message.request_id, "result", output)
                answered += 1
        except Exception as error:
            self.note_failure(error)
            if len(batch) == 1:
                yield OutgoingMessage(batch[0].request_id, "error", error)
                return
            logger.warning("a batch of %d failed after %d outputs: %s", len(batch), answered, error)
            for message, token in zip(batch[answered:], tokens[answered:], strict=True):
                yield from self._answers([message], [token])

    def _outputs(self, payloads: list[Any], tokens: list[CancelToken]) -> Iterable[Payload]:
        if self._compute_batch is not None:
            return self._compute_batch(payloads)
        assert self._compute_one is not None, "one of the two is given"
        return [self._compute_one(*one) for one in zip(payloads, tokens, strict=True)]


def _without_token(compute: Callable[[Any], Payload]) -> Callable[[Any, CancelToken], Payload]:
    return lambda payload, token: compute(payload)
