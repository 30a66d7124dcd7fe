"""What the models of a declaration have in common: frozen, without unknown keys, and telling of all that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from omni_python.config.errors import ConfigError
from omni_python.config.model_errors import problems_of

# Set while an outer model is being built: only the outermost one reports, with the whole path.
_nested: ContextVar[bool] = ContextVar("nested", default=False)


class ConfigModel(BaseModel):
    """A part of a declaration. Building one with wrong values raises `ConfigError` with every problem."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    _parts: ClassVar[Mapping[str, type[BaseModel]]] = {}
    """The models in its fields, and in theirs, by the fields' names."""

    def __init__(self, /, **data: Any) -> None:
        if _nested.get():
            super().__init__(**data)
            return
        token = _nested.set(True)
        try:
            super().__init__(**data)
        except ValidationError as error:
            root, labels = self._paths(data)
            raise ConfigError(problems_of(error, root, labels, {"": type(self), **self._parts})) from None
        finally:
            _nested.reset(token)

    @classmethod
    def _paths(cls, data: dict[str, Any]) -> tuple[str, list[str]]:
        """The path of this model when it stands alone, and the paths of its stages."""
        return "", []
