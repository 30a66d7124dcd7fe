"""What passes between a stage and its scheduler, inside one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(slots=True)
class IncomingMessage:
    """Work for a scheduler.

    new_request: `data` is the stage's input payload (after fan-in).
    stream_chunk: `data` is one payload of a streaming edge, in order. Chunks may come before the request itself.
    stream_done: the streaming edge is finished; `data` is None.
    """

    request_id: str
    type: Literal["new_request", "stream_chunk", "stream_done"]
    data: Any = None


@dataclass(slots=True)
class OutgoingMessage:
    """What a scheduler has made.

    result: `data` is the stage's output payload; the request is then over for this scheduler.
    stream: `data` is one chunk. `target` names a stage of `stream_to`; None means the coordinator
        (terminal stages only).
    error: `data` is the exception; the request is then over for the whole pipeline.
    """

    request_id: str
    type: Literal["result", "stream", "error"]
    data: Any = None
    target: str | None = None
