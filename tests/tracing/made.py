"""A trace made by hand, whose times are round."""

from __future__ import annotations

from omni_python.proto.trace import ORCHESTRATOR, Hop, Lane, Span, Trace


def made_trace(state: str = "completed", error: str = "") -> Trace:
    """Ten seconds: the thinker computes for the first half, the talker in turns with waiting for the second."""
    thinker = Lane(
        "thinker", "ar", 1, "h", 0.0, 1.0, 5.0, (Span("queue", 0.0, 1.0), Span("compute", 1.0, 5.0, 4.0, 9, 3))
    )
    talker = Lane(
        "talker",
        "speech",
        0,
        "h",
        2.0,
        6.0,
        10.0,
        (Span("wait", 2.0, 5.0), Span("compute", 5.0, 8.0, 3.0, 2, 1), Span("compute", 8.0, 10.0, 0.5, 2, 1)),
    )
    own = Lane(ORCHESTRATOR, ORCHESTRATOR, 0, "h", 0.0, 0.0, 10.0, (Span("wait", 0.0, 10.0),))
    hops = (
        Hop("client", ORCHESTRATOR, False, 1, 1, None, 0.0, None, 0.0),
        Hop(ORCHESTRATOR, "thinker", False, 1, 1, 0.0, 0.0, 0.0, 0.0),
        Hop("thinker", "talker", True, 9, 9, 2.0, 2.0, 5.0, 5.0),
        Hop("talker", ORCHESTRATOR, False, 1, 1, 10.0, 10.0, 10.0, 10.0),
    )
    return Trace("7-1", "ab" * 16, "cd" * 8, "demo", 1.7e9, 10.0, state, error, True, (own, thinker, talker), hops)
