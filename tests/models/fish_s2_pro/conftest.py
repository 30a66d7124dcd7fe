"""A tiny checkpoint and the plain model of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_python.models.fish_s2_pro import tiny
from tests.oracle.fish_s2_pro_reference import Reference


@pytest.fixture(scope="session")
def fish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fish")
    tiny.build(path)
    return path


@pytest.fixture(scope="session")
def reference(fish: Path) -> Reference:
    return Reference(fish)
