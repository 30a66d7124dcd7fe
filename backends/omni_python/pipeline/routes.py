"""Which replicas of other processes a request goes to, as long as a stage of this process works on it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from omni_python.proto.messages import Route


class Routes:
    """Routes come with the messages of a request and go with the last of this process's stages that has it open.

    `is_open(request_id)` says whether one has, and `on_over(request_id)` is told when none has any more. Thread-safe.
    """

    def __init__(self, is_open: Callable[[str], bool], on_over: Callable[[str], None]) -> None:
        self._is_open = is_open
        self._on_over = on_over
        self._routes: dict[str, Route] = {}
        self._arriving: dict[str, int] = {}  # request -> messages that are being handed to a stage
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._routes)

    def of(self, request_id: str) -> Route:
        """The route of a request that a stage has open; empty for others."""
        return self._routes.get(request_id, ())

    def arriving(self, request_id: str, route: Route) -> None:
        """A message is to be handed to a stage, which may or may not open the request for it; then comes `arrived`."""
        with self._lock:
            self._arriving[request_id] = self._arriving.get(request_id, 0) + 1
            self._routes[request_id] = route

    def arrived(self, request_id: str) -> None:
        with self._lock:
            others = self._arriving.pop(request_id) - 1
            if others:
                self._arriving[request_id] = others
            self._drop_if_over(request_id)

    def closed(self, request_id: str) -> None:
        """A stage is done with a request."""
        with self._lock:
            self._drop_if_over(request_id)

    def _drop_if_over(self, request_id: str) -> None:
        if request_id not in self._arriving and not self._is_open(request_id):
            self._routes.pop(request_id, None)
            self._on_over(request_id)
