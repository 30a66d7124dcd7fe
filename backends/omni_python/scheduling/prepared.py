"""A simple stage some of whose requests wait for the outside world first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from omni_python.proto.errors import Cancelled, Unavailable
from omni_python.proto.payload import Payload
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.cancellation import CancelToken, CancelTokens
from omni_python.scheduling.simple import SimpleScheduler


class PreparedScheduler(Scheduler):
    """`inner`, with `prepare(payload, token) -> payload` before it for the payloads that `waits` says need it.

    Each of those has a thread of its own, so that a slow one holds up no other; beyond `most` at a time they are
    refused as `Unavailable`. An abort sets the token, which `prepare` polls.
    """

    def __init__(
        self,
        inner: SimpleScheduler,
        prepare: Callable[[Any, CancelToken], Payload],
        waits: Callable[[Any], bool],
        most: int,
    ) -> None:
        super().__init__()
        self.outbox = inner.outbox
        self.batch_sizes = inner.batch_sizes
        inner.on_began = lambda request_id: self.on_began(request_id)
        inner.on_broken = self.give_up
        self.traces = inner.traces
        self._inner = inner
        self._prepare = prepare
        self._waits = waits
        self._most = most
        self._tokens = CancelTokens()
        self._handing_over = threading.Lock()
        self._thread = threading.Thread(target=self.run_to_end, args=(self._run,), name="omni-prepared", daemon=True)

    def start(self) -> None:
        self._inner.start()
        self._thread.start()

    def stop(self) -> None:
        self._tokens.cancel_all()
        self.inbox.put(None)
        self._thread.join()
        self._inner.stop()

    def abort(self, request_id: str) -> None:
        self.inbox.discard(request_id)
        with self._handing_over:
            self._tokens.cancel(request_id)
            self._inner.abort(request_id)

    def stats(self) -> Mapping[str, int]:
        return {**self._inner.stats(), "arriving": len(self.inbox), "preparing": len(self._tokens)}

    def _run(self) -> None:
        while (message := self.inbox.get()) is not None:
            self._take(message)
            del message  # holds a relay slot

    def _take(self, message: IncomingMessage) -> None:
        try:
            waits = message.type == "new_request" and self._waits(message.data)
        except Exception as error:
            self.outbox.put(OutgoingMessage(message.request_id, "error", error))
            return
        if not waits:
            self._inner.inbox.put(message)
        elif len(self._tokens) >= self._most:
            refusal = Unavailable(f"{self._most} requests are waiting for their media, as many as may; try again later")
            self.outbox.put(OutgoingMessage(message.request_id, "error", refusal))
        else:
            token = self._tokens.open(message.request_id)
            self.on_began(message.request_id)
            threading.Thread(target=self._prepare_one, args=(message, token), name="omni-prepare", daemon=True).start()

    def _prepare_one(self, message: IncomingMessage, token: CancelToken) -> None:
        start = time.monotonic()
        try:
            data = self._prepare(message.data, token)
            if self.traces:
                self.note_step([message.request_id], start)
            with self._handing_over:
                if not token.is_cancelled():
                    self._inner.inbox.put(IncomingMessage(message.request_id, "new_request", data))
        except Cancelled:
            pass
        except Exception as error:
            self.outbox.put(OutgoingMessage(message.request_id, "error", error))
        finally:
            self._tokens.close(message.request_id)
