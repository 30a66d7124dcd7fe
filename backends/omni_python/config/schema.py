"""The declaration of a pipeline: its stages, where each runs, and how results go from one to the next.

Building one that breaks a rule raises `ConfigError` with every problem.
"""

from __future__ import annotations

from typing import Any

from omni_python.config.declaration import PipelineDeclaration, StageConfig, raw_name
from omni_python.config.errors import ConfigError, Problem
from omni_python.config.parts import EndpointsConfig, RelayConfig
from omni_python.config.rules import check_pipeline, check_stages

__all__ = ["EndpointsConfig", "PipelineConfig", "RelayConfig", "StageConfig", "class_path"]


class PipelineConfig(PipelineDeclaration):
    """A whole pipeline, valid as such. A model family declares a subclass whose `stages` have a default."""

    def __init__(self, /, **data: Any) -> None:
        if data.get("config_cls") is None:
            data["config_cls"] = class_path(type(self))
        try:
            super().__init__(**data)
        except ConfigError as error:
            raise ConfigError([*error.problems, *self._stage_problems(data)]) from None
        problems = check_pipeline(self)
        if problems:
            raise ConfigError(problems)

    def changed(self, **changes: Any) -> PipelineConfig:
        """A copy with some fields changed, checked like a new one."""
        return type(self)(**{**dict(self), **changes})

    @classmethod
    def _stage_problems(cls, data: dict[str, Any]) -> list[Problem]:
        """What is wrong with the stages that can be read at all, where other fields cannot."""
        raw = cls.raw_stages(data)
        readable: list[StageConfig] = []
        for stage in raw:
            try:
                readable.append(stage if isinstance(stage, StageConfig) else StageConfig(**stage))
            except (ConfigError, TypeError):
                continue
        return check_stages(readable, {name for stage in raw if isinstance(name := raw_name(stage), str)})


def class_path(cls: type) -> str:
    """The dotted path of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"
