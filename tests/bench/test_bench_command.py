"""`omni bench` on a real server, with pipelines whose work and failures are known."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from omni_python.cli import main
from omni_python.serve.triton_server import TritonServer

OMNI = str(Path(sys.executable).with_name("omni"))


def bench(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and the loads' figures."""
    status = main(["bench", "--url", url, "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)["loads"]


def requests_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def most_at_once(requests: list[dict[str, Any]]) -> int:
    changes = sorted([(one["sent"], 1) for one in requests] + [(one["ended"], -1) for one in requests])
    return max(sum(change for _, change in changes[:upto]) for upto in range(1, len(changes) + 1))


def test_closed_loop(noop_server: TritonServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Four chunks a request. Two processes share the load; once more where the machine held one up until the other was
    done."""
    sampling = json.dumps({"chunks": 4, "chunk_bytes": 8, "delay": 0.02, "delay_stage": "a"})
    arguments = ["--pipeline", "noop_forward", "--sampling", sampling]
    arguments += ["--concurrency", "2,6", "--requests", "30", "--warm-up", "5", "--processes", "2", "--slo", "ttft=9s"]
    for attempt in range(3):
        out = tmp_path / str(attempt)
        status, loads = bench(capsys, noop_server.grpc_url, *arguments, "--out", str(out))
        assert status == 0
        requests = {load["load"]: [one for one in requests_of(out) if one["load"] == load["load"]] for load in loads}
        if all(most_at_once(mine) > n // 2 for mine, n in zip(requests.values(), (2, 6), strict=True)):
            break
    for load, concurrency in zip(loads, (2, 6), strict=True):
        mine = requests[load["load"]]
        assert sorted(one["index"] for one in mine) == list(range(35))
        assert concurrency // 2 < most_at_once(mine) <= concurrency
        assert (load["requests"], load["answered"], load["refused"], load["errors"]) == (30, 30, 0, {})
        assert load["ttft"]["p50"] > 0.02 and load["ttfa"] is None and load["rtf"] is None
        counts = {len(one["texts"]) for one in mine}
        assert counts <= {2, 3, 4, 5}, "four chunks, of which some may come together, and the sink's report"
        counted = [one for one in mine if one["counted"]]
        assert len(counted) == 30
        start, end = min(one["sent"] for one in counted), max(one["ended"] for one in counted)
        inside = sum(start <= one["ended"] <= end for one in mine)
        assert load["requests_per_s"] == pytest.approx(inside / (end - start), rel=0.05)
        assert load["goodput_per_s"] == load["requests_per_s"]
        assert {"tritonserver", "noop_forward", "noop_forward_a", "noop_forward_b"} <= set(load["cpu_ms"])
        assert sum(load["cpu_ms"].values()) > 0 and load["generator_cores"] > 0
        assert one_stage_worked(counted)
    assert json.loads((out / "summary.json").read_text())["loads"] == loads
    with Image.open(out / "concurrency.png") as picture:
        assert picture.size[0] > 1000


def one_stage_worked(requests: list[dict[str, Any]]) -> bool:
    return all([stage[0] for stage in one["stages"]] == ["a", "b"] for one in requests)


def test_open_loop_asks_whatever_becomes_of_it(
    noop_server: TritonServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """20 a second of what takes 0.1 s each, one after the other."""
    arguments = ["--pipeline", "noop_line", "--sampling", '{"delay": 0.1}', "--out", str(tmp_path), "--slo", "total=1s"]
    status, [load] = bench(
        capsys, noop_server.grpc_url, *arguments, "--rate", "20", "--seconds", "2", "--warm-up", "0", "--seed", "7"
    )
    assert status == 0
    requests = requests_of(tmp_path)
    assert most_at_once(requests) > 8
    assert all(one["sent"] >= one["due"] for one in requests)
    late = [one["sent"] - one["due"] for one in requests]
    assert load["sent_late"]["p50"] == pytest.approx(statistics.median(late))
    assert load["requests"] == len(requests) and 20 < len(requests) < 60
    assert load["total"]["max"] > 1.0 and load["goodput_per_s"] < load["requests_per_s"] <= 10.5
    assert (tmp_path / "rate.png").exists()


def test_errors_are_counted_by_kind(noop_server: TritonServer, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--pipeline", "noop_line", "--concurrency", "1", "--requests", "3", "--warm-up", "0"]
    status, [load] = bench(capsys, noop_server.grpc_url, *arguments, "--sampling", '{"fail_stage": "b"}')
    assert (status, load["errors"], load["answered"]) == (1, {"RequestFailed": 3}, 0)
    assert main(["bench", "--url", noop_server.grpc_url, *arguments, "--sampling", '{"fail_stage": "b"}']) == 1
    shown = capsys.readouterr()
    assert "concurrency 1: 3 x RequestFailed" in shown.out
    assert shown.err.count("NoopFailure: stage b fails, as asked") == 1, "one message tells what the others say"
    status, [load] = bench(capsys, noop_server.grpc_url, *arguments, "--sampling", '{"delay": 1.0}', "--timeout", "0.3")
    assert (status, load["errors"]) == (1, {"Timeout": 3})


def test_ctrl_c_keeps_what_was_measured(noop_server: TritonServer, tmp_path: Path) -> None:
    command = [OMNI, "bench", "--url", noop_server.grpc_url, "--pipeline", "noop_line", "--out", str(tmp_path)]
    command += ["--concurrency", "2,4", "--seconds", "600", "--sampling", '{"delay": 0.01}']
    environment = {**os.environ, "COLUMNS": "80"}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        deadline = time.monotonic() + 60
        while not (written := list(tmp_path.glob("requests.jsonl"))) or written[0].stat().st_size < 4000:
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        shown, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, errors
    assert "interrupted; its figures are those until then" in shown
    assert max(map(len, shown.splitlines())) <= 80
    [load] = json.loads((tmp_path / "summary.json").read_text())["loads"]
    assert load["interrupted"] and load["answered"] > 5
    assert len(requests_of(tmp_path)) >= load["answered"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "0"], "--concurrency: must be numbers above 0"),
        (["--rate", "1,x"], "--rate: must be numbers above 0"),
        (["--seconds", "0"], "--seconds: must be more than 0"),
        (["--slo", "ttfa=1"], "an objective has a unit"),
        (["--sampling", "[]"], "--sampling: must be a JSON object"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
        (["--data", sys.executable], "is no text in UTF-8; give one JSON object a line"),
        (["--url", "http://localhost:8000"], "--url: the load goes over gRPC"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_server_and_no_pipeline(noop_server: TritonServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--url", noop_server.grpc_url]) == 1
    assert "pipelines ready at" in capsys.readouterr().err
    assert main(["bench", "--url", "127.0.0.1:1"]) == 1
    assert "no Triton server answers" in capsys.readouterr().err
