"""What is left to a request while its media are got."""

from __future__ import annotations

import time
from collections.abc import Callable

from omni_python.proto.errors import Cancelled, InvalidArgument


class Budget:
    """Bytes and seconds of one request; every step that may take long asks it, and is ended by its exceptions."""

    def __init__(self, max_bytes: int, seconds: float, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        self.max_bytes = max_bytes
        self._bytes = max_bytes
        self._limit = seconds
        self._end = time.monotonic() + seconds
        self._is_cancelled = is_cancelled

    def seconds(self) -> float:
        """What is left, above 0. Raises `InvalidArgument` where nothing is, `Cancelled` where the request is over."""
        if self._is_cancelled():
            raise Cancelled("the request was cancelled")
        left = self._end - time.monotonic()
        if left <= 0:
            raise InvalidArgument(
                f"loading this request's media took longer than {self._limit:g} s, the most that is waited; "
                "use a faster host or send the file inline"
            )
        return left

    def check(self, nbytes: int) -> None:
        """Raise `InvalidArgument` where so many more bytes are too many."""
        if nbytes > self._bytes:
            raise InvalidArgument(
                f"the request's media files have more than {self.max_bytes} bytes together, the most that is accepted"
            )

    def take(self, nbytes: int) -> None:
        """Use up so many bytes; raises as `check` does."""
        self.check(nbytes)
        self._bytes -= nbytes
