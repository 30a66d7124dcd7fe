"""Collects what a stage waits for before it can run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload

WaitForFn = Callable[[str, str, Payload], Collection[str] | None]
MergeFn = Callable[[dict[str, Payload]], Payload]


class FanIn:
    """Payloads by request and source until all that are expected are there, then their merge.

    `sources` is the static superset. `wait_for_fn(request_id, source, payload)` is asked at each arrival until it
    returns the request's active subset; None means that it cannot tell yet.
    """

    def __init__(self, sources: Sequence[str], merge: MergeFn, wait_for_fn: WaitForFn | None = None) -> None:
        self._sources = tuple(sources)
        self._merge = merge
        self._wait_for_fn = wait_for_fn
        self._arrived: dict[str, dict[str, Payload]] = {}
        self._active: dict[str, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._arrived)

    def add(self, request_id: str, source: str, payload: Payload) -> Payload | None:
        """The merged payload once it is complete, else None. Raises `OmniError` where sources and config disagree."""
        if source not in self._sources:
            raise OmniError(f"got a payload from {source}, which is not in wait_for ({', '.join(self._sources)})")
        arrived = self._arrived.setdefault(request_id, {})
        if source in arrived:
            raise OmniError(f"got a second payload from {source}")
        arrived[source] = payload
        active = self._active_sources(request_id, source, payload)
        if active is None or not active <= arrived.keys():
            return None
        if strays := arrived.keys() - active:
            raise OmniError(f"got a payload from {', '.join(sorted(strays))}, which wait_for_fn left out")
        self.discard(request_id)
        return self._merge({name: arrived[name] for name in self._sources if name in active})

    def discard(self, request_id: str) -> None:
        self._arrived.pop(request_id, None)
        self._active.pop(request_id, None)

    def _active_sources(self, request_id: str, source: str, payload: Payload) -> frozenset[str] | None:
        if self._wait_for_fn is None:
            return frozenset(self._sources)
        active = self._active.get(request_id)
        if active is None:
            chosen = self._wait_for_fn(request_id, source, payload)
            if chosen is None:
                return None
            active = frozenset((chosen,) if isinstance(chosen, str) else chosen)
            if not active or not active <= frozenset(self._sources):
                raise OmniError(
                    f"wait_for_fn returned {sorted(active)}; it must be a non-empty part of {list(self._sources)}"
                )
            self._active[request_id] = active
        return active
