"""What streamed events say together."""

from __future__ import annotations

from collections.abc import Iterable

from omni_python.client import Event, TextDelta


def told(events: Iterable[Event]) -> str:
    """The text of events that are all text. How many there are depends on how fast they were taken."""
    text = ""
    for event in events:
        assert isinstance(event, TextDelta)
        text += event.text
    return text
