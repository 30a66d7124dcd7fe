"""Limits of lists that are looked at before the lists' elements, each of which takes time to check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


def at_most(most: int, what: str, count: Callable[[list[Any]], int] = len) -> BeforeValidator:
    """For a list: refused where `count` of it, as it came, is above `most`; `what` tells clients what is counted."""

    def check(value: Any) -> Any:
        if isinstance(value, list) and (found := count(value)) > most:
            context = {"found": found, "most": most, "what": what}
            raise PydanticCustomError("too_many", "has {found} {what}; at most {most} are accepted", context)
        return value

    return BeforeValidator(check)


def parts(messages: list[Any]) -> int:
    """Of chat messages, each of which counts as one at least."""
    return sum(_parts(message.get("content")) if isinstance(message, dict) else 1 for message in messages)


def _parts(content: Any) -> int:
    return max(len(content), 1) if isinstance(content, list) else 1
