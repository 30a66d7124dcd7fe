"""`omni bench` on spoken answers: its figures are those of the speech that came."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_python.cli import main
from omni_python.serve.triton_server import TritonServer


def test_speech_is_measured(tiny_server: TritonServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sampling = json.dumps({"max_tokens": 4, "ignore_eos": True, "talker": {"max_tokens": 21, "ignore_eos": True}})
    arguments = ["--url", tiny_server.grpc_url, "--concurrency", "2", "--requests", "4", "--warm-up", "1"]
    arguments += ["--sampling", sampling, "--out", str(tmp_path), "--slo", "ttfa=60s", "--json"]
    assert main(["bench", *arguments]) == 0
    [load] = json.loads(capsys.readouterr().out)["loads"]
    requests = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert len(requests) == 5
    for one in requests:
        assert sum(length for _, length in one["speech"]) == pytest.approx(one["usage"]["audio_seconds"], abs=1e-3)
        assert one["usage"]["audio_frames"] == 20 and one["usage"]["output_tokens"] == 4
    assert load["answered"] == 4 and load["goodput_per_s"] == load["requests_per_s"]
    assert 0 < load["ttft"]["p50"] < load["ttfa"]["p50"] < load["total"]["p50"]
    counted = [one for one in requests if one["counted"]]
    factors = [(one["ended"] - one["sent"]) / one["usage"]["audio_seconds"] for one in counted]
    assert load["rtf"]["max"] == pytest.approx(max(factors), rel=1e-3)
    assert 0 < load["continuity"] <= 1 and 0 <= load["unbroken"] <= 1
    assert load["cpu_ms"]["qwen3_omni_speech"] > 0
    assert (tmp_path / "concurrency.png").stat().st_size > 10_000
