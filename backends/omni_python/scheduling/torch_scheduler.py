"""Continuous batching of an autoregressive stage over plain torch modules."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping

from omni_python.layers.kv_cache import PAGE_TOKENS
from omni_python.model_runner.base import ARModelRunner, R
from omni_python.proto.errors import InvalidArgument
from omni_python.scheduling.autoregressive import AutoregressiveScheduler
from omni_python.scheduling.base import KVUse
from omni_python.scheduling.kv_pages import PagePool

logger = logging.getLogger(__name__)


class TorchScheduler(AutoregressiveScheduler[R]):
    """Runs at most `max_running` requests at once; they join and leave between steps.

    Each step takes every running request whose next input is there, and of new requests as many as have at most
    `prefill_tokens` prompt tokens together (at least one), so neither holds up the other. A request is admitted, in
    order of arrival, once pages for its prompt and all its `max_tokens` are free: it can then never run out of them.
    """

    def __init__(
        self, runner: ARModelRunner[R], max_running: int, kv_tokens: int, prefill_tokens: int = 4096, name: str = "ar"
    ) -> None:
        super().__init__(name)
        if max_running < 1 or kv_tokens < PAGE_TOKENS or prefill_tokens < 1:
            raise InvalidArgument(
                f"max_running ({max_running}) and prefill_tokens ({prefill_tokens}) must be at least 1, "
                f"kv_tokens ({kv_tokens}) at least {PAGE_TOKENS}"
            )
        self._runner = runner
        self._max_running = max_running
        self._prefill_tokens = prefill_tokens
        self._pool = PagePool(kv_tokens // PAGE_TOKENS)
        self._rows: dict[str, R] = {}
        self._waiting: deque[R] = deque()
        self._running: list[R] = []
        runner.allocate(self._pool.num_pages)

    def stats(self) -> Mapping[str, int]:
        return {"running": len(self._running), "waiting": len(self._waiting), "kv_pages": self._pool.used}

    def kv_use(self) -> KVUse:
        return KVUse(self._pool.used * PAGE_TOKENS, self._pool.num_pages * PAGE_TOKENS)

    def _row(self, request_id: str) -> R | None:
        return self._rows.get(request_id)

    def drop(self, request_id: str) -> None:
        row = self._rows.pop(request_id, None)
        if row is None:
            return
        self._runner.release(row)
        if row.pages:
            self._running.remove(row)
            self._pool.give_back(row.pages)
            row.pages = []
        else:
            self._waiting.remove(row)

    def work(self) -> bool:
        self._admit()
        rows = self._next_batch()
        if rows:
            for batch in self._runner.batches(rows):
                self._step(batch)
        return bool(rows)

    def _admit_row(self, row: R) -> None:
        self._check_fits(row, self._pool.num_pages * PAGE_TOKENS)
        self._rows[row.request_id] = row
        self._waiting.append(row)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            pages = self._pool.take(self._pages(self._waiting[0]))
            if pages is None:
                return
            row = self._waiting.popleft()
            row.pages = pages
            self._running.append(row)
            self.on_began(row.request_id)

    def _next_batch(self) -> list[R]:
        batch, budget = [], self._prefill_tokens
        for row in self._running:
            if not self._runner.is_ready(row):
                continue
            if row.computed:
                batch.append(row)
            elif row.prompt_len <= budget or budget == self._prefill_tokens:
                batch.append(row)
                budget -= row.prompt_len
        return batch

    def _step(self, rows: list[R]) -> None:
        self.batch_sizes.observe(len(rows))
        start = time.monotonic() if self.traces else 0.0
        try:
            self._runner.step(rows)
        except Exception as error:
            logger.exception("a step of %d requests failed", len(rows))
            self.note_failure(error)
            for row in rows:
                row.error = error
        if start:
            self.note_step([row.request_id for row in rows], start)
        for row in rows:
            if row.error is not None:
                self._clear(row)
                self.fail(row.request_id, row.error)
            else:
                self._emit(row)

    def _clear(self, row: R) -> None:
        """A failed row's pages may hold values that are no numbers, which would spread to their next holder."""
        try:
            self._runner.cache.clear(row.pages)
        except Exception as error:
            logger.exception("could not clear the pages of a failed request")
            self.give_up(f"ended: it could not clear the KV cache of a failed request ({error})")

    @staticmethod
    def _pages(row: R) -> int:
        return -(-(row.prompt_len + row.max_tokens) // PAGE_TOKENS)
