"""What can go wrong on the client's side."""

from __future__ import annotations

from collections.abc import Sequence


class OmniClientError(Exception):
    """Base of all errors of this client; `str(error)` is one line for the user."""


class ServerUnreachable(OmniClientError):
    """No Triton server answers at the address."""


class ConnectionLost(ServerUnreachable):
    """The server went away in the middle of an answer."""


class RequestFailed(OmniClientError):
    """The server refused the request or could not finish it; `str(error)` is its message.

    Events that came before stay valid: text that was streamed before the speech failed, for example.
    """


class InvalidRequest(RequestFailed):
    """The request itself is wrong; the message says what would be valid."""


class NotFound(RequestFailed):
    """What the request names is not there."""


class NotSupported(RequestFailed):
    """Valid in general, but not for this pipeline or this server."""


class Unavailable(RequestFailed):
    """The server cannot take or finish the request now (overload, a dead stage); trying again may help."""


class DeadlineExceeded(RequestFailed):
    """The request's time was up before it ended."""


class UnknownPipeline(RequestFailed):
    """The server has no pipeline of this name, or it is not ready; `ready` are those that are."""

    def __init__(self, message: str, ready: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ready = tuple(ready)
