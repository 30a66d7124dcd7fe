"""Builds variants of the test family's pipeline from a table of changes."""

from __future__ import annotations

import copy
from typing import Any

from omni_python.config import ConfigError, PipelineConfig, Problem
from tests.config.family import SpeechPipelineConfig

REMOVED = ...
"""As the new value of a field: the field is left out."""


def speech_data(changes: dict[str, Any]) -> dict[str, Any]:
    """The family's pipeline as plain data, with changes by `stage.field` or by the pipeline's `field`."""
    stages = [stage.model_dump(exclude_unset=True) for stage in SpeechPipelineConfig.model_fields["stages"].default]
    data: dict[str, Any] = {"model_path": "org/Speech-1", "stages": stages}
    for target, value in copy.deepcopy(changes).items():
        name, _, field = target.rpartition(".")
        holder = next(stage for stage in stages if stage["name"] == name) if name else data
        if value is REMOVED:
            del holder[field]
        else:
            holder[field] = value
    return data


def problems_of(data: dict[str, Any]) -> tuple[Problem, ...]:
    """What is wrong with a pipeline; empty if nothing."""
    try:
        PipelineConfig(**data)
    except ConfigError as error:
        return error.problems
    return ()
