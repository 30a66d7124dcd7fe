"""A tiny checkpoint, the plain model of it, and a pipeline that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_python.models.ming_omni import tiny
from omni_python.models.ming_omni.config import MingOmniSpeechPipelineConfig
from tests.oracle.ming_omni_reference import Reference
from tests.pipeline.harness import Pipeline, running


@pytest.fixture(scope="session")
def ming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ming")
    tiny.build(path)
    return path


@pytest.fixture(scope="session")
def ming_reference(ming: Path) -> Reference:
    return Reference(ming)


@pytest.fixture(scope="session")
def pipeline(ming: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    overrides: dict[str, Any] = {"thinker": {"kv_tokens": 16384}, "talker": {"kv_tokens": 16384}}
    config = MingOmniSpeechPipelineConfig(model_path=str(ming), runtime_overrides=overrides)
    with running(config, tmp_path_factory.mktemp("s")) as pipeline:
        yield pipeline
        pipeline.wait_empty()
