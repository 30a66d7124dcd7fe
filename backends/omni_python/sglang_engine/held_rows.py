"""Rows that wait for their next input, kept out of SGLang's batches with their keys and values where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class HeldRows:
    """`names` are those of SGLang's requests; it is the engine's own table, which changes."""

    def __init__(self, scheduler: Any, names: Mapping[Any, str]) -> None:
        self._scheduler = scheduler
        self._names = names
        self._held: list[Any] = []

    @property
    def rows(self) -> Sequence[Any]:
        return self._held

    def forget(self, request: Any) -> bool:
        """Whether the request was held; what it has in the cache is then the caller's to free."""
        if request not in self._held:
            return False
        self._held.remove(request)
        return True

    def update(self, ready: Callable[[str], bool]) -> None:
        """Take rows that are not ready out of SGLang's batches, and put back those that are."""
        scheduler = self._scheduler
        back = [request for request in self._held if ready(self._names[request])]
        for batch in (scheduler.running_batch, scheduler.last_batch):
            if batch is None or batch.is_empty():
                continue
            waits = [r for r in batch.reqs if r in self._names and not r.finished() and not ready(self._names[r])]
            if waits:
                keep = [i for i, r in enumerate(batch.reqs) if r not in waits and not r.finished()]
                batch.filter_batch(keep_indices=keep)
                self._held += [request for request in waits if request not in self._held]
        if back:
            self._held = [request for request in self._held if request not in back]
            # Named for its first use upstream; it makes a decode batch of requests that have their KV already.
            batch = scheduler._build_hisparse_decode_batch(back)
            batch.multimodal_inputs = [request.multimodal_inputs for request in back]
            if scheduler.running_batch.is_empty():
                scheduler.running_batch = batch
            else:
                scheduler.running_batch.merge_batch(batch)
        scheduler.running_batch.batch_is_full = False
