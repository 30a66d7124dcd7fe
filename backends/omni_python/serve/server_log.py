"""Read the reason of a failure from a tritonserver's log."""

from __future__ import annotations

import contextlib
import json
import re

# Lines as `E1128 00:15:25.578753 5270 model_lifecycle.cc:642] "message with \n escaped"`.
_ERROR_LINE = re.compile(r"^E\d{4} [\d:.]+ \d+ \S+\] (.*)$|^(error: .*)$")
_TOLD = re.compile(r"Internal: (CheckpointError|ConfigError|InvalidArgument|NotFound|Unsupported): ")
"""Exceptions that say what is to be changed: the lines of Python that one came through would only hide that."""

_NO_MODEL_FAILED = ("CudaDriverHelper",)  # what every server without a GPU reports
_TAIL_LINES = 20


def failure_reason(log: str) -> str:
    """The part of `log` that tells why the server or a model did not start.

    The models that failed, each with its exception; else the errors; else the last lines.
    """
    errors = [message for message in map(_error_message, log.splitlines()) if message]
    models = [message for message in errors if message.startswith("failed to load '")]
    lines = [line for line in log.splitlines() if line and line[0] not in "|+"]  # without the tables
    return "\n".join(models or errors or lines[-_TAIL_LINES:]) or "its log is empty"


def _error_message(line: str) -> str | None:
    match = _ERROR_LINE.match(line)
    if match is None or any(harmless in line for harmless in _NO_MODEL_FAILED):
        return None
    message = match[1] or match[2]
    with contextlib.suppress(ValueError):
        message = str(json.loads(message))
    return (message.partition("\n\nAt:\n")[0] if _TOLD.search(message) else message).strip()
