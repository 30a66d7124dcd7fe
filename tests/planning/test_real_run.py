"""`omni plan --measure` on a real server, and what the plan says of the same server's next loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_python.cli import main
from omni_python.planning.costs import load_costs
from omni_python.serve.triton_server import TritonServer

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]

TEXT_TOKENS, FRAMES, CLIENTS = 12, 24, 4


def write_questions(path: Path) -> Path:
    """Answers of equal length, whose speech differs."""
    with path.open("w") as file:
        for seed in range(8):
            talker = {"max_tokens": FRAMES + 1, "ignore_eos": True, "seed": seed}
            sampling = {"max_tokens": TEXT_TOKENS, "ignore_eos": True, "talker": talker}
            print(json.dumps({"text": "How are you today?", "sampling": sampling}), file=file)
    return path


def test_predicts_the_server_that_it_measured(
    tiny_server: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Machines have other work at times, so only the work of a request is held to a bound, a wide one; on a machine
    that has nothing else to do, what is printed are rates and latencies to compare."""
    data, file = write_questions(tmp_path / "questions.jsonl"), tmp_path / "costs.yaml"
    metrics = f"http://{tiny_server.host}:{tiny_server.metrics_port}/metrics"
    measure = ["plan", "--measure", tiny_server.grpc_url, "--metrics", metrics, "--data", str(data), "--out", str(file)]
    assert main([*measure, "--concurrency", f"1,{CLIENTS}", "--requests", "16"]) == 0
    costs = load_costs(file)
    assert set(costs.stages) == {"preprocessing", "mm_aggregate", "thinker", "decode", "talker_ar", "code2wav"}
    thinker, talker, vocoder = (costs.stages[name] for name in ("thinker", "talker_ar", "code2wav"))
    assert (thinker.kind, talker.kind, vocoder.kind) == ("loop", "loop", "queue")
    assert (thinker.steps, talker.steps) == (TEXT_TOKENS, FRAMES + 1)
    assert (thinker.after, talker.streams_from, vocoder.streams_from) == (["mm_aggregate"], "thinker", "talker_ar")
    assert (costs.stages["decode"].output, vocoder.output) == ("text", "audio")
    assert thinker.max_batch == talker.max_batch == CLIENTS
    assert 0 < thinker.fixed_ms + thinker.per_row_ms < 500
    assert costs.alone.first_text_ms and costs.alone.first_audio_ms and costs.alone.whole_ms
    assert costs.alone.first_text_ms < costs.alone.first_audio_ms < costs.alone.whole_ms

    capsys.readouterr()
    assert main(["plan", str(file), "--concurrency", str(CLIENTS), "--json"]) == 0
    [plan] = json.loads(capsys.readouterr().out)["plans"]
    load = ["bench", "--url", tiny_server.grpc_url, "--data", str(data), "--json"]
    assert main([*load, "--concurrency", str(CLIENTS), "--requests", "32"]) == 0
    [seen] = json.loads(capsys.readouterr().out)["loads"]
    with capsys.disabled():
        print(f"\n{compared(plan, seen, costs.devices['host'].cores)}")
    assert 0.4 < cpu_ms(plan, costs.devices["host"].cores) / seen_cpu_ms(seen) < 2.5


def cpu_ms(plan: dict[str, Any], cores: float) -> float:
    """Of a request, on all cores."""
    return float(plan["devices"]["host"]["busy"] * cores / plan["rate"] * 1e3)


def seen_cpu_ms(seen: dict[str, Any]) -> float:
    """The same of the server and of who asks."""
    return float(sum(seen["cpu_ms"].values()) + seen["generator_cores"] / seen["requests_per_s"] * 1e3)


def compared(plan: dict[str, Any], seen: dict[str, Any], cores: float) -> str:
    figures = {
        "CPU ms/request": (cpu_ms(plan, cores), seen_cpu_ms(seen)),
        "requests/s": (plan["rate"], seen["requests_per_s"]),
        "whole, ms": (plan["whole"]["mean_ms"], seen["total"]["p50"] * 1e3),
        "first audio, ms": (plan["first_audio"]["mean_ms"], seen["ttfa"]["p50"] * 1e3),
    }
    return "\n".join(
        f"{name}: planned {planned:.3g}, seen {measured:.3g} ({planned / measured - 1:+.0%})"
        for name, (planned, measured) in figures.items()
    )
