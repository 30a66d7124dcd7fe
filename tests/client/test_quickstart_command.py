"""`omni quickstart`, as a user runs it, on the tiny checkpoint."""

from __future__ import annotations

import re
import subprocess
import sys
import wave
from pathlib import Path

from omni_python.models.qwen3_omni.tiny import build
from tests.conftest import LeakCheck


def test_asks_about_the_photo_and_speaks_the_answer(tmp_path: Path, repo_root: Path, no_leaks: LeakCheck) -> None:
    build(tmp_path / "tiny-random")
    (tmp_path / "run").mkdir()
    command = [
        *(sys.executable, "-m", "omni_python.cli", "quickstart", "--once"),
        *("--model-repository", str(repo_root / "model_repository"), "--model-path", str(tmp_path / "tiny-random")),
        *("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"),
    ]
    with no_leaks():
        result = subprocess.run(command, cwd=tmp_path / "run", capture_output=True, text=True, timeout=110)
    assert (result.returncode, result.stderr) == (0, "")
    figures = {
        label: float(re.search(rf"^{label} +([\d.]+)", result.stdout, re.MULTILINE)[1])  # type: ignore[index]
        for label in ("time to first text", "time to first audio", "real-time factor", "audio length")
    }
    assert 0 < figures["time to first text"] <= figures["time to first audio"]
    with wave.open(str(tmp_path / "run" / "answer.wav")) as speech:
        assert speech.getframerate() == 24_000
        assert abs(speech.getnframes() / 24_000 - figures["audio length"]) < 0.01
    assert re.search(r"^answer +\S", result.stdout, re.MULTILINE), "it has text"
    assert "what it says means nothing" in result.stdout
