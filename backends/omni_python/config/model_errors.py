"""Turns pydantic's errors into `Problem`s: paths with the stages' names, and messages that say what is valid."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from omni_python.config.errors import Problem, did_you_mean, listed

_EXPECTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of names to values",
    "model_attributes_type": "a mapping of names to values",
    "invalid-json-value": "plain data (a string, number, true, false, null, list or mapping)",
}


def problems_of(
    error: ValidationError, root: str, labels: list[str], models: Mapping[str, type[BaseModel]]
) -> list[Problem]:
    """The problems that `error` reports.

    `root` is the path of the validated model, "" for a pipeline; `labels` are the paths of its stages; `models` maps
    "" and the name of each field that holds a model to that model's class, for the valid keys.
    """
    return [_problem(details, root, labels, models) for details in error.errors(include_url=False)]


def _problem(details: ErrorDetails, root: str, labels: list[str], models: Mapping[str, type[BaseModel]]) -> Problem:
    location = [part for part in details["loc"] if part not in _BRANCHES]
    holder = next((part for part in reversed(location[:-1]) if isinstance(part, str) and part in models), "")
    return Problem(_path(location, root, labels), _message(details, models[holder]))


# pydantic puts the tried branch of a JSON value's union into the location.
_BRANCHES = ("list", "dict", "str", "int", "float", "bool", "[key]")


def _path(location: list[int | str], root: str, labels: list[str]) -> str:
    path = root
    if location[:1] == ["stages"] and len(location) > 1 and isinstance(location[1], int):
        path, location = labels[location[1]], location[2:]
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def _message(details: ErrorDetails, model: type[BaseModel]) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    key = str(details["loc"][-1]) if details["loc"] else ""
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        keys = list(model.model_fields)
        hint = did_you_mean(key, keys)
        if not hint and "factory_args" in keys:
            hint = "; what its factory takes goes into factory_args"
        return f"unknown key{hint} (valid: {listed(keys)})"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, not {value!r}"
    if kind == "literal_error":
        hint = (
            did_you_mean(value, context["expected"].replace("'", "").replace(" or ", ", ").split(", "))
            if isinstance(value, str)
            else ""
        )
        return f"must be {context['expected']}, not {value!r}{hint}"
    if kind == "string_too_short":
        return "must not be empty"
    if kind == "string_too_long":
        return f"must have at most {context['max_length']} characters, not {len(value)}"
    if kind == "greater_than":
        return f"must be above {context['gt']:g}, not {value!r}"
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']:g}, not {value!r}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']:g}, not {value!r}"
    return details["msg"]
