"""How a request's last response is sent, so that Triton hears of its end even where it has no memory for the response.

Where a response that also marks the end finds no room in Triton's shared memory, the stub takes the request for ended
all the same and sends no more of it, and Triton does not: its client would wait for ever (seen with 24.10). So where
memory may be short another response, without content, marks the end.
"""

from __future__ import annotations

import os
from typing import Any

import triton_python_backend_utils as pb_utils

SHARED_MEMORY = "/dev/shm"
"""Where Triton's processes share memory."""

SPARE_MEMORY = 8 << 20
"""Bytes free in there, beside what a response needs, below which there may be no room for it."""

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def send_last(sender: Any, response: pb_utils.InferenceResponse, nbytes: int = 0) -> None:
    """The last response, of about `nbytes`. Raises what Triton raises; an error can then still be sent."""
    if _may_have_room(nbytes):
        sender.send(response, flags=_FINAL)
    else:
        sender.send(response)
        sender.send(flags=_FINAL)


def send_last_error(sender: Any, response: pb_utils.InferenceResponse, no_room: bool) -> None:
    """The request ends even where the response cannot be sent. `no_room`: one of its responses could not."""
    if not no_room and _may_have_room():
        sender.send(response, flags=_FINAL)
        return
    try:
        sender.send(response)
    finally:
        sender.send(flags=_FINAL)


def _may_have_room(nbytes: int = 0) -> bool:
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return True
    return found.f_bavail * found.f_frsize > SPARE_MEMORY + 2 * nbytes  # it may grow as base64
