"""Who asks for how much of a GPU's memory, and where that is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_python.cli import main
from omni_python.config import PipelineConfig
from omni_python.config.files import save_pipeline
from omni_python.config.memory import MEMORY_FRACTION, MemoryShare, memory_shares, share_table
from tests.config.changes import speech_data

SHARED = {
    "encoder.gpu": 1,
    "encoder.factory_args": {MEMORY_FRACTION: 0.25},
    "talker.factory_args": {"max_batch": 1, MEMORY_FRACTION: 0.5},
    "vocoder.factory_args": {MEMORY_FRACTION: 0.9},
    "runtime_overrides": {"vocoder": {MEMORY_FRACTION: 0.125}},
}


def test_shares_are_those_of_the_processes_that_run_and_overrides_win() -> None:
    shares = memory_shares(PipelineConfig(**speech_data(SHARED)))
    assert shares == {
        0: (MemoryShare("thinker", "thinker", None),),
        1: (
            MemoryShare("encoder", "encoder", 0.25),
            MemoryShare("talker", "talker", 0.5),
            MemoryShare("vocoder", "talker", 0.125),
        ),
    }


def test_the_table_has_bytes_where_the_card_is_known() -> None:
    shares = (MemoryShare("encoder", "front", 0.25), MemoryShare("thinker", "thinker", None))
    assert share_table(shares, 80 << 30) == [
        "stage    process  fraction      GiB",
        "encoder  front    0.25          20.00",
        "thinker  thinker  not declared",
        "total             0.25          20.00",
    ]


def test_explain_shows_the_table_of_each_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_pipeline(PipelineConfig(**speech_data(SHARED)), tmp_path / "p.yaml")
    assert main(["validate", "--explain", "--no-import", str(tmp_path / "p.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "  memory of GPU 0\n" in printed
    after = printed.split("  memory of GPU 1\n")[1].splitlines()
    assert [line.split() for line in after[:5]] == [
        ["stage", "process", "fraction"],
        ["encoder", "encoder", "0.25"],
        ["talker", "talker", "0.5"],
        ["vocoder", "talker", "0.125"],
        ["total", "0.875"],
    ]
    assert main(["validate", "--no-import", str(tmp_path / "p.yaml")]) == 0
    assert "memory" not in capsys.readouterr().out
