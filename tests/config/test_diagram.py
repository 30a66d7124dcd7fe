"""The drawing of a topology: every model, stage, edge and way is in it, whatever the pipeline, within 100 columns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from omni_python.commands.diagram import WIDTH, draw
from omni_python.commands.printing import to_ascii
from omni_python.config import PipelineConfig, resolve_topology
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.models.qwen3_omni.config import (
    Qwen3OmniColocatedPipelineConfig,
    Qwen3OmniSpeechPipelineConfig,
    Qwen3OmniTextPipelineConfig,
)
from tests.config.pipelines import pipelines

REPLICAS = """\
┌─ qwen3_omni (orchestrator) ───────────────────────────────────────────────────── CPU ─┐
│  client        ───▶ preprocessing  inline, shm            submit, to the least loaded │
└───────────────────────────────────────────────────────────────────────────────────────┘
"""


def replicated() -> PipelineConfig:
    base = Qwen3OmniSpeechPipelineConfig(model_path="m")
    changes: dict[str, dict[str, Any]] = {
        "thinker": {"replicas": 2, "tp_size": 2, "gpu": [0, 1, 2, 3]},
        "talker_ar": {"replicas": 3, "gpu": [4, 5, 6]},
        "code2wav": {"replicas": 3, "gpu": [4, 5, 6]},
    }
    front = {stage.name: {"replicas": 2} for stage in base.stages if stage.process == "front"}
    return base.changed(
        stages=[s.model_copy(update={**front, **changes}.get(s.name, {})) for s in base.stages], runtime_overrides={}
    )


def test_replicas_and_ranks_are_shown() -> None:
    lines = draw(replicated())
    assert "\n".join(lines[:3]) + "\n" == REPLICAS
    titles = [line for line in lines if line.startswith("┌")]
    assert [title.split(" ─")[0] + title[-20:] for title in titles[1:]] == [
        "┌─ qwen3_omni_front, 2 replicas" + "─────────────── CPU ─┐"[-20:],
        "┌─ qwen3_omni_thinker, 2 replicas" + "────── GPU 0+1 | 2+3 ─┐"[-20:],
        "┌─ qwen3_omni_speech, 3 replicas" + "───── GPU 4 | 5 | 6 ─┐"[-20:],
    ]


@pytest.mark.parametrize(
    "config",
    [
        Qwen3OmniSpeechPipelineConfig(model_path="m"),
        Qwen3OmniColocatedPipelineConfig(model_path="m"),
        Qwen3OmniTextPipelineConfig(model_path="m"),
        NoopLinePipelineConfig(),
        replicated(),
    ],
)
def test_the_known_pipelines_are_drawn_in_full(config: PipelineConfig) -> None:
    lines = draw(config)
    assert len({len(line) for line in lines}) == 1 and len(lines[0]) <= WIDTH
    text = "\n".join(lines)
    assert "…" not in text and to_ascii(text).isascii()
    topology = resolve_topology(config)
    arrows = [line.split("▶ ")[-1].split()[0] for line in lines if "──▶" in line]
    edges = {(edge.source, edge.target) for edge in topology.edges}
    assert len(arrows) == 1 + len(edges) + len(topology.terminal_stages)
    assert text.count("local") == len({(e.source, e.target) for e in topology.edges if e.same_process})
    assert all(group.triton_model in text for group in topology.groups)


@given(pipelines())
@settings(max_examples=30)
def test_any_pipeline_fits(config: PipelineConfig) -> None:
    lines = draw(config)
    assert lines == draw(config)
    assert {len(line) for line in lines} == {len(lines[0])} and len(lines[0]) <= WIDTH


def test_long_names_lose_their_middles() -> None:
    base = NoopLinePipelineConfig(relay_backend="nixl")
    names = dict(zip("abc", ("a" * 60, "b" * 31 + "x" + "y" * 32, "c" * 64), strict=True))
    stages = [
        stage.model_copy(
            update={"name": names[stage.name], "next": [names[name] for name in stage.next_stages] or None}
        )
        for stage in base.stages
    ]
    lines = draw(base.changed(stages=stages, name="n" * 64))
    assert {len(line) for line in lines} == {WIDTH}
    assert sum("bb…yy" in line for line in lines) == 2


def test_terminals_without_line_drawing_get_ascii(tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "omni_python.cli", "validate", str(tmp_path)],
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "+- noop_line_b --" in done.stdout and "|  b      ---> c" in done.stdout
