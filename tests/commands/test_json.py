"""What the commands print for scripts, and how they meet pipes and terminals."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from omni_python.cli import main
from omni_python.commands.progress import counting, working
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopStreamPipelineConfig

NOOP_LINE = "omni_python.models.noop.config.NoopLinePipelineConfig"
OMNI = str(Path(sys.executable).with_name("omni"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    compile_pipeline(NoopStreamPipelineConfig(), tmp_path)
    return tmp_path


def test_validate(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = repository / "noop_stream" / "1" / "pipeline.yaml", repository / "bad.yaml"
    bad.write_text(good.read_text().replace("terminal: true", "terminl: true"))
    assert main(["validate", "--json", str(good), str(bad)]) == 2
    captured = capsys.readouterr()
    assert captured.err == ""
    valid, wrong = json.loads(captured.out)
    assert valid == {
        "path": str(good),
        "valid": True,
        "problems": [],
        "pipeline": "noop_stream",
        "model_path": "none",
        "orchestrator": "noop_stream",
        "entry_stage": "a",
        "models": [
            {"name": "noop_stream_a", "stages": ["a"], "replica_gpus": [[]]},
            {"name": "noop_stream_b", "stages": ["b"], "replica_gpus": [[]]},
        ],
        "edges": [
            {"from": "a", "to": "b", "kind": "next"},
            {"from": "a", "to": "b", "kind": "stream"},
        ],
    }
    assert (wrong["path"], wrong["valid"]) == (str(bad), False)
    assert wrong["problems"][0]["field"] == "stages.b.terminl" and "did you mean" in wrong["problems"][0]["message"]


def test_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", NOOP_LINE, "--json", "--output", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["pipeline"] == "noop_line"
    assert sorted(printed["files"]) == sorted(str(path) for path in tmp_path.rglob("*") if path.is_file())


def test_quickstart_json_needs_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", "--json"]) == 2
    assert capsys.readouterr().err == "omni quickstart: --json needs --once: it prints one answer\n"


@pytest.mark.parametrize(
    "command", ["bench", "chat", "checkpoint", "compile", "completion", "quickstart", "serve", "validate"]
)
def test_help_fits_a_terminal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert re.search(r"^(examples?|to install, once):$", shown, re.MULTILINE)
    too_long = [line for line in shown.splitlines() if len(line) > 79 and not line.startswith("  omni")]
    assert too_long == []


def test_a_reader_that_has_enough_is_no_error(repository: Path) -> None:
    command = f"{OMNI} validate --explain {' '.join([str(repository)] * 60)} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.endswith(": valid\n")
    assert done.returncode == 141, "as a program that SIGPIPE ends"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("terminal", "term"), [(True, "xterm"), (True, "dumb"), (False, "xterm")])
def test_progress_moves_on_terminals_alone(monkeypatch: pytest.MonkeyPatch, terminal: bool, term: str) -> None:
    shown = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", term)
    with working("thinking"):
        pass
    with counting("loading", "models", 3, lambda: 2):
        pass
    if terminal and term != "dumb":
        assert "thinking" in shown.getvalue() and "0/3" in shown.getvalue() and "\x1b[" in shown.getvalue()
    else:
        assert shown.getvalue() == "thinking ...\nloading ...\n"
