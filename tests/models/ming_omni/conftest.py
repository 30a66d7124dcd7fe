"""A tiny checkpoint and the plain model of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_python.models.ming_omni import tiny
from tests.oracle.ming_omni_reference import Reference


@pytest.fixture(scope="session")
def ming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ming")
    tiny.build(path)
    return path


@pytest.fixture(scope="session")
def ming_reference(ming: Path) -> Reference:
    return Reference(ming)
