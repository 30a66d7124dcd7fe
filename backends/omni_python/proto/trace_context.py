"""Whether a request is to be traced, as its client says: W3C Trace Context (level 1) and this backend's own word."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 0x01


@dataclass(frozen=True)
class TraceContext:
    """A caller's trace: its id, the caller's span in it, and whether the caller records it."""

    trace_id: str
    parent_id: str
    sampled: bool

    @classmethod
    def parse(cls, traceparent: str) -> TraceContext | None:
        """The context of a `traceparent` header; None for one that is invalid, which the standard wants ignored."""
        match = _TRACEPARENT.fullmatch(traceparent.strip())
        if match is None:
            return None
        version, trace_id, parent_id, flags, rest = match.groups()
        if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(parent_id, 16):
            return None
        return cls(trace_id, parent_id, bool(int(flags, 16) & _SAMPLED))


@dataclass(frozen=True)
class TraceWish:
    """What a request says of its trace. `asked`: it wants it with its answer, or none at all (False); None leaves that
    to its caller's context, and without one to the pipeline's sampling."""

    asked: bool | None = None
    context: TraceContext | None = None
