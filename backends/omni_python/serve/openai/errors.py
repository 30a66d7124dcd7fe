"""What goes wrong, as OpenAI's error objects."""

from __future__ import annotations

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


def api_error(error: OmniClientError) -> ApiError:
    """The client's error as one of the API."""
    status, code = next((status, code) for kind, status, code in _STATUS if isinstance(error, kind))
    return ApiError(status, str(error), code)


_TAGS = ("body", "constrained-str", "system", "developer", "user", "assistant", "text", "input_audio", "image_url")
"""What pydantic adds to a field's path where a body is of one of several kinds."""


def validation_error(problems: list[Any]) -> ApiError:
    """What pydantic found in a request's body, of the problems the one that lies deepest: where a field may be of
    several kinds, that is the kind that was meant."""
    problem = max(problems, key=lambda problem: len(problem["loc"]))
    loc = [str(part) for part in problem["loc"]]
    path = [part for i, part in enumerate(loc) if not part.endswith("]") and not _is_tag(part, loc[:i])]
    param = ".".join(path) or None
    if problem["type"] == "extra_forbidden":
        return ApiError(400, f"Unsupported parameter: {param!r} is not supported by this server.", "unsupported", param)
    if problem["type"] == "missing":
        return ApiError(400, f"Missing required parameter: {param!r}.", "missing_required_parameter", param)
    if problem["type"] == "json_invalid":
        reason = problem.get("ctx", {}).get("error", "")
        return ApiError(400, f"The body is not valid JSON: {reason}.", "invalid_json")
    return ApiError(400, f"Invalid value for {param!r}: {problem['msg']}.", "invalid_value", param)


def _is_tag(part: str, before: list[str]) -> bool:
    """Tags follow an index, or the field itself; the fields of the same names do not."""
    return part in _TAGS and (not before or before[-1].isdigit() or part == "constrained-str")
