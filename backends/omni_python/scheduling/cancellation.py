"""Tells a computation that its request is over."""

from __future__ import annotations

import threading

from omni_python.proto.errors import Cancelled


class CancelToken:
    """Set once, from any thread; polling it costs an attribute look-up."""

    __slots__ = ("_cancelled",)

    def __init__(self) -> None:
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def is_cancelled(self) -> bool:
        return self._cancelled

    def raise_if_cancelled(self) -> None:
        """Raises `Cancelled`; a scheduler drops the computation that it ends."""
        if self._cancelled:
            raise Cancelled("the request was cancelled")


class CancelTokens:
    """The tokens of the requests that are being computed. Thread-safe."""

    def __init__(self) -> None:
        self._tokens: dict[str, CancelToken] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._tokens)

    def open(self, request_id: str) -> CancelToken:
        token = CancelToken()
        with self._lock:
            self._tokens[request_id] = token
        return token

    def cancel(self, request_id: str) -> None:
        """Set the token of a request; one that is not being computed is left alone."""
        with self._lock:
            token = self._tokens.get(request_id)
        if token is not None:
            token.cancel()

    def cancel_all(self) -> None:
        with self._lock:
            for token in self._tokens.values():
                token.cancel()

    def close(self, request_id: str) -> None:
        with self._lock:
            self._tokens.pop(request_id, None)
