"""Types of the configuration's fields, each with a message that says what is valid."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, JsonValue, StrictStr
from pydantic_core import PydanticCustomError

MAX_NAME_LENGTH = 64
"""Names become parts of Triton model names, folders and socket paths."""

NAME_RULE = f"use 1 to {MAX_NAME_LENGTH} letters, digits, '_' and '-'"

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_name(text: str) -> bool:
    """Whether `text` can name a pipeline, a stage or a process."""
    return len(text) <= MAX_NAME_LENGTH and _NAME.fullmatch(text) is not None


def _invalid(message: str) -> PydanticCustomError:
    # pydantic formats the template with its context; braces in a user's value must not be read as fields.
    return PydanticCustomError("omni", "{text}", {"text": message})


def _name(value: str) -> str:
    if not is_name(value):
        raise _invalid(f"{value!r} cannot be used in a model name and a file path; {NAME_RULE}")
    return value


def _dotted(value: str) -> str:
    if not _DOTTED.fullmatch(value):
        raise _invalid(f"{value!r} is not a dotted import path like 'package.module.function'")
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise _invalid(f"{value!r} is not the name of an environment variable")
    return value


def _variable_value(value: Any) -> Any:
    if not isinstance(value, str):
        raise _invalid(f"must be a string, not {value!r}; in YAML put it in quotes")
    return value


def _targets(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    raise _invalid(f"must be a stage's name or a list of names, not {value!r}")


def _is_gpu(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _gpus(value: Any) -> Any:
    if value is None or _is_gpu(value) or (isinstance(value, list) and value and all(map(_is_gpu, value))):
        return value
    raise _invalid(f"must be a GPU's number (0, 1, ...), a list of them, or null for the CPU, not {value!r}")


Name = Annotated[StrictStr, AfterValidator(_name)]
DottedPath = Annotated[StrictStr, AfterValidator(_dotted)]
Targets = Annotated[str | list[str] | None, BeforeValidator(_targets)]
Gpus = Annotated[int | list[int] | None, BeforeValidator(_gpus)]
Arguments = dict[StrictStr, JsonValue]
Environment = dict[
    Annotated[StrictStr, AfterValidator(_variable)], Annotated[StrictStr, BeforeValidator(_variable_value)]
]
