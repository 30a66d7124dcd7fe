"""The committed model repository is what `omni compile` writes, and Triton and `omni validate` can read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from omni_python.cli import main

COMPILED = ["compile", "qwen3_omni", "--model-path", "../checkpoints/tiny-qwen3-omni"]


@pytest.fixture
def committed(repo_root: Path) -> Path:
    return repo_root / "model_repository"


def files(repository: Path) -> dict[str, bytes]:
    """Every file by its path; those whose names begin with a dot only keep folders that git would not."""
    return {
        str(path.relative_to(repository)): path.read_bytes()
        for path in sorted(repository.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def test_it_is_what_omni_compile_writes(committed: Path, tmp_path: Path) -> None:
    assert main([*COMPILED, "--output", str(tmp_path)]) == 0
    assert files(committed) == files(tmp_path)


def test_every_model_has_a_version_folder_in_a_fresh_clone(committed: Path) -> None:
    """git keeps no empty folders, and Triton takes a model without a version for one to unload."""
    for model in committed.iterdir():
        assert any((model / "1").iterdir()), model.name


def test_triton_can_read_every_model(committed: Path) -> None:
    models: dict[str, ModelConfig] = {}
    for file in committed.glob("*/config.pbtxt"):
        models[file.parent.name] = text_format.Parse(file.read_text("utf-8"), ModelConfig())
    assert {model.name.strip() or name for name, model in models.items()} == set(models)
    assert {path.name for path in committed.iterdir()} == set(models)
    for model in models.values():
        assert model.backend == "omni_python"
        assert model.model_transaction_policy.decoupled
        assert model.input and model.output


def test_it_is_valid(committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(committed)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{committed}/qwen3_omni/1/pipeline.yaml: valid\n")
    assert printed.err == ""
