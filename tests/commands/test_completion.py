"""`omni completion`, with the shells themselves where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from omni_python.cli import main

_COMPLETE = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_omni omni "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str], folder: Path) -> Path:
    assert main(["completion", shell]) == 0
    path = folder / "completion"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_takes_it(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = script(shell, capsys, tmp_path)
    assert "shared-memory" in path.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed; its script is not tried (`.ci/run` installs it)")
    subprocess.run([shell, "-n", str(path)], check=True)


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["c"], ["chat", "checkpoint", "compile", "completion"]),
        (["chat", "--te"], ["--text-only", "--temperature"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["chat", "--shared-memory", ""], ["system", "cuda"]),
        (["validate", "pipe"], ["pipeline.yaml"]),
        (["compile", "x", "--output", "mod"], ["models"]),
        (["chat", "--image", "p"], ["pipeline.yaml"]),
    ],
)
def test_bash_completes(
    words: list[str], completions: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = script("bash", capsys, tmp_path)
    (tmp_path / "pipeline.yaml").touch()
    (tmp_path / "models").mkdir()
    command = ["bash", "--norc", "-c", _COMPLETE, "bash", str(path), "omni", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.strip() for line in done.stdout.splitlines()] == completions


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["completion", "tcsh"])
    assert caught.value.code == 2
    assert "choose from" in capsys.readouterr().err
