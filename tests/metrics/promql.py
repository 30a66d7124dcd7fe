"""What a PromQL expression asks for: metrics, the labels that it matches, and those that it groups by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SELECTOR = re.compile(r"\b(omni_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Selector:
    """One metric, with matchers (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return name == self.name and all(
            _holds(labels.get(label, ""), how, value) for label, how, value in self.matchers
        )


def _holds(found: str, how: str, value: str) -> bool:
    equal = re.fullmatch(value, found) is not None if how.endswith("~") else found == value
    return equal != how.startswith("!")


def selectors(expression: str) -> list[Selector]:
    return [Selector(name, tuple(_MATCHER.findall(matchers))) for name, matchers in _SELECTOR.findall(expression)]


def grouping(expression: str) -> set[str]:
    """Labels by which an expression groups or joins."""
    return {label.strip() for labels in _GROUPING.findall(expression) for label in labels.split(",")}
