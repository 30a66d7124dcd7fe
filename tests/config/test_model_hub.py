"""Checkpoints by their names on Hugging Face's hub, in a cache as its own library writes and reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from omni_python.config.model_hub import how_to_get, is_hub_id

RESOLVE = """
import sys
from pathlib import Path
from omni_python.config.resolve import resolved_model_path
from tests.config.family import SpeechPipelineConfig
for path in sys.argv[2:]:
    print(resolved_model_path(SpeechPipelineConfig(model_path=path, name="speech"), Path(sys.argv[1])))
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def resolved(home: Path, repository: Path, *model_paths: str) -> list[str]:
    """By a process of its own: the library reads its environment when it is imported."""
    environment = {"HF_HOME": str(home), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", RESOLVE, str(repository), *model_paths]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A cache that holds the model `org/Speech-1`, as `hf download` leaves it."""
    model = tmp_path / "home/hub/models--org--Speech-1"
    (model / "refs").mkdir(parents=True)
    (model / "refs/main").write_text(COMMIT)
    (model / "snapshots" / COMMIT).mkdir(parents=True)
    (model / "snapshots" / COMMIT / "config.json").write_text("{}")
    return tmp_path / "home"


def test_ids_are_looked_up_in_the_cache(home: Path, tmp_path: Path) -> None:
    repository = tmp_path / "model_repository"
    (repository / "org/Local").mkdir(parents=True)
    found = resolved(home, repository, "org/Speech-1", "org/Local", "org/Absent", "none", "org/-bad-")
    snapshot = home / "hub/models--org--Speech-1/snapshots" / COMMIT
    assert found == [str(snapshot), str(repository / "org/Local"), "org/Absent", "none", "org/-bad-"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", True),
        ("none", False),
        ("/models/a", False),
        ("../a", False),
        ("./a", False),
        ("~/a", False),
        ("a/b/c", False),
        ("", False),
    ],
)
def test_what_is_an_id(path: str, expected: bool) -> None:
    assert is_hub_id(path) is expected
    assert ("hf download" in how_to_get(path)) is expected
