"""What goes wrong, as OpenAI's error objects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from omni_python.client import (
    DeadlineExceeded,
    InvalidRequest,
    NotSupported,
    OmniClientError,
    ServerUnreachable,
    Unavailable,
    UnknownPipeline,
)
from omni_python.serve.openai.schema import UNKNOWN_FIELD


class ApiError(Exception):
    """Ends a request with an HTTP status and an error object; `param` names the field at fault."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


_STATUS: tuple[tuple[type[OmniClientError], int, str], ...] = (
    (UnknownPipeline, 404, "model_not_found"),
    (InvalidRequest, 400, "invalid_request"),
    (NotSupported, 400, "unsupported"),
    (Unavailable, 503, "overloaded"),
    (DeadlineExceeded, 504, "deadline_exceeded"),
    (ServerUnreachable, 503, "server_unreachable"),
    (OmniClientError, 500, "request_failed"),
)


_SHOWN = 100
"""Characters of a client's own words in a message."""

_WHERE = re.compile(r"(?:sampling_parameters\.)?([a-z_]+(?:\[\d+\]|\.[a-z_]+)*): ")
"""How the pipelines' messages begin where they are about a field."""


def api_error(error: OmniClientError) -> ApiError:
    """The client's error as one of the API."""
    status, code = next((status, code) for kind, status, code in _STATUS if isinstance(error, kind))
    if isinstance(error, UnknownPipeline):  # its message names an address that this API's clients cannot reach
        valid = ", ".join(error.ready) or "none"
        return ApiError(status, f"The model does not exist, or is not ready; there are: {valid}.", code, "model")
    message = str(error)
    where = _WHERE.match(message) if isinstance(error, InvalidRequest | NotSupported) else None
    param = where[1].replace("[", ".").replace("]", "") if where else None
    return ApiError(status, message, code, param)


def validation_error(problems: Sequence[Any]) -> ApiError:
    """The first of what pydantic found in a request."""
    problem = problems[0]
    kind, path = problem["type"], [str(part) for part in problem["loc"]]
    if kind == UNKNOWN_FIELD:
        path.append(f"{problem['ctx']['field']:.{_SHOWN}}")
    param = ".".join(part for part in path if not (part.startswith("<") and part.endswith(">"))) or None
    if kind == UNKNOWN_FIELD:
        message = f"Unsupported parameter: {param!r} is not supported by this server; {problem['msg']}."
        return ApiError(400, message, "unsupported", param)
    if kind == "missing":
        return ApiError(400, f"Missing required parameter: {param!r}.", "missing_required_parameter", param)
    where = "Invalid request" if param is None else f"Invalid value for {param!r}"
    return ApiError(400, f"{where}: {problem['msg']}.", "invalid_value", param)
