"""perf_analyzer, where it is installed, measures the pipeline and a stage's model alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omni_python.cli import main
from omni_python.serve.triton_server import TritonServer

REQUESTS = 4

pytestmark = pytest.mark.skipif(
    shutil.which("perf_analyzer") is None, reason="perf_analyzer is not on PATH: run it in Triton's SDK image"
)


def analyzed(server: TritonServer, model: str, data: Path, folder: Path) -> str:
    export = folder / "export.json"
    command = ["perf_analyzer", "-m", model, "-u", server.grpc_url, "-i", "grpc", "--streaming", "--async"]
    command += ["--input-data", str(data), "--concurrency-range", "2", "--request-count", str(REQUESTS)]
    done = subprocess.run(
        [*command, "--profile-export-file", str(export)], capture_output=True, text=True, timeout=100, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [experiment] = json.loads(export.read_text())["experiments"]
    assert len(experiment["requests"]) == REQUESTS
    assert min(len(request["response_timestamps"]) for request in experiment["requests"]) > 1, "no answer is complete"
    return done.stdout


def test_the_pipeline(tiny_server: TritonServer, repo_root: Path, tmp_path: Path) -> None:
    shown = analyzed(tiny_server, "qwen3_omni", repo_root / "scripts" / "perf_analyzer_input.json", tmp_path)
    assert re.search(r"Successful request count: [1-9]", shown)


@pytest.mark.parametrize(
    ("stage", "model"),
    [
        ("mm_aggregate", "qwen3_omni_front"),
        ("thinker", "qwen3_omni_thinker"),
        ("talker_ar", "qwen3_omni_speech"),
        ("code2wav", "qwen3_omni_speech"),
    ],
)
def test_a_stage(stage: str, model: str, tiny_server: TritonServer, repo_root: Path, tmp_path: Path) -> None:
    recording, data = tmp_path / "stage.omnirec", tmp_path / "stage.json"
    sampling = '{"max_tokens": 4, "talker": {"max_tokens": 13}}'
    arguments = ["--url", tiny_server.grpc_url, "--sampling", sampling, "--out", str(recording)]
    assert main(["record", stage, "Read this to me.", *arguments]) == 0
    script = repo_root / "scripts" / "perf_analyzer_input.py"
    data.write_bytes(
        subprocess.run([sys.executable, str(script), str(recording)], capture_output=True, check=True).stdout
    )
    analyzed(tiny_server, model, data, tmp_path)
