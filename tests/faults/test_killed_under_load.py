"""Every process of a server is killed and stopped at random moments under load, on the tiny model.

The short form does each once. `OMNI_FAULT_ROUNDS=200` does as many random rounds; `OMNI_FAULT_BACK_S=5` bounds the
seconds until the service is back (the default leaves room for a busy machine). `OMNI_FAULT_REPORT=FILE` appends a line
of JSON for each round; `server_deaths` there counts those that nobody caused too: the gRPC front of 24.10 now and then
aborts when many requests end with errors at once ("ASSERTION FAILED: prior > 0"), and is then started again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_python.client import OmniClient, OmniClientError
from omni_python.config.compile import compile_pipeline
from omni_python.config.declaration import LimitsConfig
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.models.qwen3_omni.tiny import build
from tests.e2e import metrics
from tests.faults.load import GRACE, Mixed
from tests.faults.serving import Serving

ROUNDS = int(os.environ.get("OMNI_FAULT_ROUNDS", "0"))
BACK_S = float(os.environ.get("OMNI_FAULT_BACK_S", "60"))
REPORT = os.environ.get("OMNI_FAULT_REPORT")
DEADLINE = 25.0
SILENCE = 5.0
VICTIMS = ("qwen3_omni_front", "qwen3_omni_thinker", "qwen3_omni_speech", "qwen3_omni", "server")
SPARE = {"fds": 40, "threads": 8, "places": 0}
"""A process may have this many more than a fresh one. A stub that is started later inherits the descriptors of the
connections that its server has then."""

LEFT_BY_TRITON = {"fds": 8, "threads": 40, "places": 1}
"""What 24.10 keeps of each orchestrator that died with requests, until it ends: 32 pool threads and a region."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("faults")
    build(folder / "tiny")
    limits = LimitsConfig(silence_s=SILENCE, deadline_s=60.0)
    config = Qwen3OmniSpeechPipelineConfig(model_path=str(folder / "tiny"), limits=limits)
    compile_pipeline(config, folder / "models")
    many = str(10 * max(ROUNDS, 10))
    with Serving(folder / "models", folder / "log", ("--max-deaths", many)) as serving:
        Mixed(serving.grpc_url, DEADLINE).outcomes()  # everything has run once
        yield serving


def rounds() -> list[tuple[str, signal.Signals]]:
    if ROUNDS:
        numbers = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)
        return [(random.choice(VICTIMS), random.choice(numbers)) for _ in range(ROUNDS)]
    stopped = [("qwen3_omni_speech", signal.SIGSTOP), ("qwen3_omni", signal.SIGSTOP)]
    return [*((victim, signal.SIGKILL) for victim in VICTIMS), *stopped]


@pytest.mark.timeout(max(600, 120 * ROUNDS))
def test_every_request_ends_and_the_service_comes_back(serving: Serving) -> None:
    baseline = serving.held()
    seen: Counter[str] = Counter()
    for victim, number in rounds():
        serving.wait_said("omni serve: ready", 60)
        load = Mixed(serving.grpc_url, DEADLINE)
        time.sleep(random.random() * 2)
        process = serving.server() if victim == "server" else serving.stub(victim)
        process.send_signal(number)
        hit = time.monotonic()
        back = seconds_until_served(serving, hit, BACK_S + (2 * SILENCE + 5 if number == signal.SIGSTOP else 0))
        outcomes = load.outcomes()
        ends = Counter(outcome.end for outcome in outcomes)
        seen += ends
        deaths = serving.said().count("omni serve: tritonserver died")
        line: dict[str, object] = {
            "server_deaths": deaths,
            "victim": victim,
            "signal": number.name,
            "back_s": round(back, 2),
            **ends,
        }
        line["errors"] = dict(Counter(outcome.error for outcome in outcomes if outcome.error))
        print(line)
        if REPORT:
            with Path(REPORT).open("a") as report:
                report.write(json.dumps(line) + "\n")
        assert not [outcome for outcome in outcomes if outcome.end == "different"], "an unaffected answer is wrong"
        late = [outcome for outcome in outcomes if outcome.end != "gave up" and outcome.seconds > DEADLINE + GRACE]
        assert not late, "past its deadline"
        if victim not in ("server", "qwen3_omni"):
            assert not ends["gave up"], "only the death of what holds the client's connection may be silent"
    assert seen["equal"], "no request ever succeeded"
    check_nothing_leaked(serving, baseline)


def seconds_until_served(serving: Serving, since: float, limit: float) -> float:
    while True:
        try:
            with OmniClient(serving.grpc_url, "qwen3_omni") as client:
                client.chat("Hello?", sampling={"max_tokens": 2, "timeout_ms": 2000}, modalities=["text"])
            return time.monotonic() - since
        except OmniClientError as error:
            assert time.monotonic() - since < limit, f"not served again after {limit} s: {error}"
            time.sleep(0.1)


def check_nothing_leaked(serving: Serving, baseline: dict[str, Counter[str]]) -> None:
    metrics.wait_empty(serving, "qwen3_omni", timeout=20)  # type: ignore[arg-type]
    end = time.monotonic() + 10
    while (more := growth(serving, baseline)) and time.monotonic() < end:
        time.sleep(0.5)
    assert not more


def growth(serving: Serving, baseline: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """What is held beyond the baseline and what may be spared."""
    now = serving.held()
    since_start = serving.said().rpartition("omni serve: ready")[2]
    deaths = since_start.count("died; loading it again")
    spare = {what: count + deaths * LEFT_BY_TRITON[what] for what, count in SPARE.items()}
    more = {what: now[what] - baseline[what] for what in now}
    return {
        what: over
        for what, counts in more.items()
        if (over := Counter({name: n for name, n in counts.items() if n > spare[what]}))
    }
