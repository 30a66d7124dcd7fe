"""`omni quickstart`, as a user runs it, on the tiny checkpoint."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import wave
from pathlib import Path
from typing import IO

import psutil
import pytest

from omni_python.models.qwen3_omni.tiny import build
from omni_python.serve.server_options import SHARED_MEMORY


def read_until(stream: IO[str], start: str) -> str:
    """Everything before the line that begins with `start`."""
    seen = ""
    for line in stream:
        if line.startswith(start):
            return seen
        seen += line
    raise AssertionError(f"no {start!r} in {seen}")


@pytest.mark.timeout(300)  # loading all stages is most of it, and takes a busy machine a minute
def test_answers_and_serves_what_it_prints(tmp_path: Path, repo_root: Path) -> None:
    build(tmp_path / "tiny-random")
    folder = tmp_path / "run"
    folder.mkdir()
    command = [
        *(sys.executable, "-m", "omni_python.cli", "quickstart"),
        *("--model-repository", str(repo_root / "model_repository"), "--model-path", str(tmp_path / "tiny-random")),
        *("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"),
    ]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as quickstart:
        assert quickstart.stdout is not None
        try:
            shown = read_until(quickstart.stdout, "Try it")
            check_demonstration(shown, folder / "answer.wav")
            check_requests(read_until(quickstart.stdout, "serving until Ctrl-C"), folder)
        finally:
            children = psutil.Process(quickstart.pid).children(recursive=True)
            quickstart.send_signal(signal.SIGINT)
            quickstart.wait(20)
        assert quickstart.returncode == 0
    assert len(children) > 3 and psutil.wait_procs(children, timeout=5)[1] == []
    assert list(SHARED_MEMORY.glob(f"omni_{quickstart.pid}_*")) == []


def check_demonstration(shown: str, speech: Path) -> None:
    figures = {
        label: float(re.search(rf"^{label} +([\d.]+)", shown, re.MULTILINE)[1])  # type: ignore[index]
        for label in ("time to first text", "time to first audio", "real-time factor", "audio length")
    }
    assert 0 < figures["time to first text"] <= figures["time to first audio"]
    with wave.open(str(speech)) as file:
        assert file.getframerate() == 24_000
        assert abs(file.getnframes() / 24_000 - figures["audio length"]) < 0.01
    assert re.search(r"^answer\n\S", shown, re.MULTILINE), "it has text"
    assert "what it says means nothing" in shown


def check_requests(script: str, folder: Path) -> None:
    """Each of the three can be pasted into a shell and answers with text."""
    answers = []
    for request in re.split(r"^# .*$", script, flags=re.MULTILINE)[1:]:
        result = subprocess.run(["bash"], input=request, cwd=folder, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        answers.append(result.stdout)
    http, tritonclient, chat = answers
    assert http.count('"text_output":') > 1 and http.count('"finish_reason":') == 1
    assert "samples of speech" in tritonclient
    assert len(chat.strip()) > 1
