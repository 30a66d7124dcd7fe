"""What plain data of a pipeline's file may stand for, by the type that a factory declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from omni_python.config.argument_types import type_problems


class Thing: ...


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (float, 1),
        (float, float("inf")),
        (tuple[int, ...], [1, 2]),
        (Path, "/srv/media"),
        (str | None, None),
        (dict[str, Any], {"a": [1]}),
        (Literal["a", "b"], "a"),
        (Thing, "bfloat16"),  # no type of plain data: the factory is to say
    ],
)
def test_what_will_do(hint: Any, value: Any) -> None:
    assert type_problems({"x": hint}, "x", value, "path") == []


@pytest.mark.parametrize(
    ("hint", "value", "told"),
    [
        (int, 1.0, "must be a whole number, not 1.0"),
        (int, True, "must be a whole number, not True"),
        (int, "3", "must be a whole number, not '3'"),
        (str, 3, "must be a string, not 3"),
        (bool, "true", "must be true or false, not 'true'"),
        (tuple[int, ...], ["a"], "must be a whole number, not 'a'"),
        (Literal["a", "b"], "c", "must be 'a' or 'b', not 'c'"),
    ],
)
def test_what_will_not(hint: Any, value: Any, told: str) -> None:
    [problem] = type_problems({"x": hint}, "x", value, "path")
    assert problem.path.startswith("path") and problem.message == told


def test_what_has_no_type_may_be_anything() -> None:
    assert type_problems({}, "x", object(), "path") == []
