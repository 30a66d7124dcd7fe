"""A tiny checkpoint, and Hugging Face's model of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_python.cli import main
from tests.oracle.qwen2_5_omni_reference import Reference


@pytest.fixture(scope="session")
def qwen25(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen25") / "tiny"
    assert main(["checkpoint", str(path), "--family", "qwen2_5_omni"]) == 0
    return path


@pytest.fixture(scope="session")
def reference(qwen25: Path) -> Reference:
    return Reference(qwen25)
