"""Whether what a pipeline gives a factory has the type that the factory says it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import to_json

from omni_python.config.errors import Problem
from omni_python.config.model_errors import problems_of


def type_hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's parameters; nothing where it is no function, or names types that are not there when it
    runs."""
    if not inspect.isfunction(factory):
        return {}
    try:
        return get_type_hints(factory)
    except NameError:
        return {}


def type_problems(hints: Mapping[str, Any], name: str, value: Any, path: str) -> list[Problem]:
    """What is wrong with the `value`, plain data, of the argument `name`; nothing where its type is not told, or is one
    that plain data cannot have. A whole number will do for any number, but no text for a number."""
    if name not in hints:
        return []
    try:
        # As JSON, in which a list will do for a tuple, and text for a path.
        TypeAdapter(hints[name]).validate_json(to_json(value, inf_nan_mode="constants"), strict=True)
    except ValidationError as error:
        return problems_of(error, path, [], {"": BaseModel})
    except PydanticSchemaGenerationError:
        return []
    return []
