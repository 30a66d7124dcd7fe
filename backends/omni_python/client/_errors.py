"""What can go wrong on the client's side."""

from __future__ import annotations


class OmniClientError(Exception):
    """Base of all errors of this client; `str(error)` is one line for the user."""


class ServerUnreachable(OmniClientError):
    """No Triton server answers at the address."""


class ConnectionLost(ServerUnreachable):
    """The server went away in the middle of an answer."""


class RequestFailed(OmniClientError):
    """The server refused the request or could not finish it; `str(error)` is its message."""


class UnknownPipeline(RequestFailed):
    """The server has no pipeline of this name, or it is not ready."""
