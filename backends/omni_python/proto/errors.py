"""The errors that a client can see, each with the code that Triton reports."""

from __future__ import annotations

import enum

LONGEST_MESSAGE = 4000
"""Characters of an error that are shown. What clients sent may be quoted in it, and is as long as they like."""


class ErrorCode(enum.IntEnum):
    """Wire values of error codes; their names are Triton's (`TRITONSERVER_Error_Code`)."""

    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARGUMENT = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    CANCELLED = 7
    DEADLINE_EXCEEDED = 8


class OmniError(Exception):
    """Base of every error that ends a request."""

    code: ErrorCode = ErrorCode.INTERNAL

    @staticmethod
    def from_code(code: int, message: str) -> OmniError:
        """The error of `code`, as it was before it crossed the wire; unknown codes are INTERNAL."""
        return _BY_CODE.get(code, OmniError)(message)

    @property
    def shown(self) -> str:
        """What the client reads. It may quote what is no Unicode, as file names that Python has read, and no message
        could carry that."""
        text = str(self).encode(errors="backslashreplace").decode()
        if len(text) <= LONGEST_MESSAGE:
            return text
        cut = f"... (of {len(text)} characters)"
        return text[: LONGEST_MESSAGE - len(cut)] + cut

    @staticmethod
    def of(error: BaseException) -> OmniError:
        """Any exception as one that a client may see; what is not ours is INTERNAL and shows its type."""
        return error if isinstance(error, OmniError) else OmniError(f"{type(error).__name__}: {error}")


class InvalidArgument(OmniError):
    """The request itself is wrong; the message says what would be valid."""

    code = ErrorCode.INVALID_ARGUMENT


class NotFound(OmniError):
    """What the request names is not there."""

    code = ErrorCode.NOT_FOUND


class Unsupported(OmniError):
    """Valid in general, but not for this pipeline or this server."""

    code = ErrorCode.UNSUPPORTED


class Unavailable(OmniError):
    """The server cannot take or finish the request now (overload, a dead stage); trying again may help."""

    code = ErrorCode.UNAVAILABLE


class Cancelled(OmniError):
    """The client left, or asked for the end."""

    code = ErrorCode.CANCELLED


class DeadlineExceeded(OmniError):
    """The request's time is up."""

    code = ErrorCode.DEADLINE_EXCEEDED


_BY_CODE: dict[int, type[OmniError]] = {
    cls.code: cls
    for cls in (OmniError, NotFound, InvalidArgument, Unsupported, Unavailable, Cancelled, DeadlineExceeded)
}
