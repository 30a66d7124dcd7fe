"""hadolint finds nothing in the Dockerfile, and would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.files import DOCKER

HADOLINT = Path(sys.executable).parent / "hadolint"


def lint(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HADOLINT, "--no-color", "-"], input=text, capture_output=True, text=True, timeout=60)


def test_it_is_clean() -> None:
    result = lint((DOCKER / "Dockerfile").read_text("utf-8"))
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        ("WORKDIR /tmp", "WORKDIR tmp", "DL3000"),
        ("EXPOSE 8000", "EXPOSE 80000", "DL3011"),
        ("FROM environment AS environment-gpu", "FROM environment AS environment-cpu", "DL3024"),
        ("--from=environment-gpu", "--from=gpu", "DL3023"),
        ('SHELL ["/bin/bash", "-euo", "pipefail", "-c"]', "", "DL4006"),
        ("ENTRYPOINT [", "ENTRYPOIN [", ""),
    ],
)
def test_a_mistake_is_found(right: str, wrong: str, rule: str) -> None:
    text = (DOCKER / "Dockerfile").read_text("utf-8")
    assert right in text
    result = lint(text.replace(right, wrong))
    assert result.returncode == 1
    assert rule in result.stdout + result.stderr
