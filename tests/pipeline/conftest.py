"""A directory for sockets, and the no-op line in it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_python.models.noop.config import NoopLinePipelineConfig
from tests.pipeline.harness import Pipeline, running


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="omni-test-") as path:  # pytest's own paths are too long for sockets
        yield Path(path)


@pytest.fixture
def line(directory: Path) -> Iterator[Pipeline]:
    with running(NoopLinePipelineConfig(), directory) as pipeline:
        yield pipeline
