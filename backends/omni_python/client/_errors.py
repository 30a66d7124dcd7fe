"""What can go wrong on the client's side."""

from __future__ import annotations


class OmniClientError(Exception):
    """Base of all errors of this client."""


class ServerUnreachable(OmniClientError):
    """No server answers at the address, or the connection broke."""


class RequestFailed(OmniClientError):
    """The server refused the request or could not finish it; `str(error)` is its message."""
