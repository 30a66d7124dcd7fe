"""`omni plan` on files of costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omni_python.cli import main
from omni_python.planning.costs import dump_costs
from tests.planning.pipelines import speech_costs


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "costs.yaml"
    path.write_text(dump_costs(speech_costs()))
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["plan", *arguments, "--json"]) == 0
    plans: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["plans"]
    return plans


def test_more_load_takes_more_gpus(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The stages' own arithmetic: a copy is added where the load is more than 80 % of what saturates."""
    plans = planned(capsys, file, "--rate", "5,20,60,200")
    gpus = [plan["gpus"] for plan in plans]
    assert gpus == sorted(gpus) and gpus[0] == 2 and gpus[-1] > 10
    for plan in plans:
        assert plan["load"] <= 0.8
        # What one copy cannot do, for its full batches alone take all of the time.
        thinker = (9 + 23 * (5 / 64 + 0.15)) / 1e3
        assert plan["devices"]["gpu0"]["copies"] >= plan["rate"] * thinker
        assert plan["bottleneck"] in plan["stages"]
    assert plans[0]["first_text"]["mean_ms"] < plans[0]["first_audio"]["mean_ms"] < plans[0]["whole"]["mean_ms"]


def test_a_latency_is_kept_by_more_copies(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    [loose] = planned(capsys, file, "--rate", "20")
    limit = 0.7 * loose["first_audio"]["tail_ms"]
    [tight] = planned(capsys, file, "--rate", "20", "--slo", f"ttfa={limit:.0f}ms")
    assert tight["gpus"] > loose["gpus"]
    assert tight["first_audio"]["tail_ms"] <= limit + 1


def test_what_no_number_of_copies_keeps(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", file, "--rate", "5", "--slo", "ttft=5ms"]) == 2
    assert "the time to first text cannot be kept to 5 ms" in capsys.readouterr().err


def test_one_gpu_or_two(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    together = ["--place", "talker_ar=gpu0,code2wav=gpu0"]
    [one] = planned(capsys, file, "--rate", "5", *together)
    [two] = planned(capsys, file, "--rate", "5")
    assert (one["gpus"], two["gpus"]) == (1, 2)
    assert one["whole"]["mean_ms"] > two["whole"]["mean_ms"]
    assert one["saturation"] < two["saturation"]


def test_a_stage_that_is_spread_over_gpus_takes_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = speech_costs()
    spread = msgspec.structs.replace(costs.devices["gpu0"], gpus=2)
    path = tmp_path / "costs.yaml"
    path.write_text(dump_costs(msgspec.structs.replace(costs, devices={**costs.devices, "gpu0": spread})))
    [plan] = planned(capsys, str(path), "--rate", "5")
    assert plan["gpus"] == 3 and plan["devices"]["gpu0"]["gpus"] == 2


def test_narrow_terminals_lose_no_letters(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["plan", file, "--rate", "1,2,4"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 60


def test_copies_that_are_given_stay(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    [plan] = planned(capsys, file, "--rate", "60", "--copies", "gpu0=5")
    assert plan["devices"]["gpu0"]["copies"] == 5
    assert main(["plan", file, "--rate", "100", "--copies", "gpu0=1"]) == 2
    assert "100 requests/s are too many for 1 of gpu0" in capsys.readouterr().err


def test_clients_that_ask_again(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Little's law: as many requests as clients are there."""
    [plan] = planned(capsys, file, "--concurrency", "6")
    assert plan["rate"] * plan["whole"]["mean_ms"] / 1e3 == pytest.approx(6)


def test_tables_are_for_people(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", file, "--rate", "33", "--load", "0.95"]) == 0
    shown = capsys.readouterr().out
    assert "GPUs" in shown and "bottleneck" in shown and "code2wav" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a file of costs"),
        (["FILE"], "give the load: either --rate or --concurrency"),
        (["FILE", "--rate", "1", "--concurrency", "1"], "give the load: either"),
        (["FILE", "--rate", "-1"], "--rate: must be numbers above 0"),
        (["FILE", "--rate", "1", "--slo", "rtf=1"], "--slo: a plan predicts ttft, ttfa, total; not rtf"),
        (["FILE", "--rate", "1", "--load", "1"], "--load: must be above 0 and below 1"),
        (["FILE", "--rate", "1", "--percentile", "100"], "--percentile: must be above 0 and below 100"),
        (["FILE", "--rate", "1", "--place", "x=gpu0"], "there is no stage 'x'"),
        (["FILE", "--rate", "1", "--place", "thinker"], "--place: must be NAME=VALUE"),
        (["FILE", "--rate", "1", "--copies", "gpu9=1"], "--copies: there is no device 'gpu9'"),
        (["FILE", "--rate", "1", "--copies", "gpu0=0"], "--copies: gpu0 must have a whole number of at least 1"),
        (["FILE", "--measure", "localhost:8001"], "give a file of costs or --measure, not both"),
        (["--measure", "127.0.0.1:1", "--out", "none/costs.yaml"], "--out: there is no folder none"),
        (["--measure", "http://localhost:8000"], "--measure: the server's gRPC service as HOST:PORT"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *(file if one == "FILE" else one for one in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--measure", "127.0.0.1:1"]) == 1
    assert "no Triton server answers" in capsys.readouterr().err
