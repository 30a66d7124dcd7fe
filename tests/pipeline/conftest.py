"""The no-op line in a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_python.models.noop.config import NoopLinePipelineConfig
from tests.pipeline.harness import Pipeline, running


@pytest.fixture
def line(directory: Path) -> Iterator[Pipeline]:
    with running(NoopLinePipelineConfig(), directory) as pipeline:
        yield pipeline
