"""Every process of a server is killed and stopped at random moments under load, on the tiny model.

The short form kills each once, and stops a stage, the orchestrator and the server. `OMNI_FAULT_ROUNDS=200` does as many
random rounds, prints a line for each and a table at the end; `OMNI_FAULT_BACK_S=5` bounds the seconds from the signal
until text and speech are answered again (the default leaves room for a busy machine). `OMNI_FAULT_REPORT=FILE` appends
a line of JSON for each round; `OMNI_FAULT_SEED` repeats the choices of a run.

Runs do not disturb each other on one host, each on two cores of its own. Of the reports of all `rounds` makes a table:

    for lane in 0 1 2 3; do
        OMNI_FAULT_ROUNDS=50 OMNI_FAULT_SEED=$lane OMNI_FAULT_REPORT=lane$lane.jsonl \\
            taskset -c $((2 * lane)),$((2 * lane + 1)) pytest -s tests/faults/test_killed_under_load.py &
    done; wait; python3 -m tests.faults.rounds lane*.jsonl

Triton 24.10 now and then aborts by itself and is then started again: the table counts these deaths that nobody caused.
It does so in its gRPC front when many requests end with errors at once ("ASSERTION FAILED: prior > 0"), and where an
orchestrator is killed in the middle of a response that it sends: its thread in the server
(`ModelInstanceState::ResponseSendDecoupled`) finds the mutex of that response without an owner, and throws out of a
destructor (3 of 28 kills on two slow cores).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from omni_python.config.compile import compile_pipeline
from omni_python.config.parts import LimitsConfig
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.models.qwen3_omni.tiny import build
from tests.e2e import metrics
from tests.faults.load import GRACE, Mixed, Outcome, Probe
from tests.faults.rounds import ORCHESTRATOR, SERVER, Round, table
from tests.faults.serving import Serving

ROUNDS = int(os.environ.get("OMNI_FAULT_ROUNDS", "0"))
BACK_S = float(os.environ.get("OMNI_FAULT_BACK_S", "120"))
REPORT = os.environ.get("OMNI_FAULT_REPORT")
SEED = int(os.environ.get("OMNI_FAULT_SEED", random.randrange(1 << 32)))
DEADLINE = 25.0
PATIENCE = 120.0
"""Seconds after which there will be no service again; a round that takes longer than `BACK_S` fails the run at its end.
"""
MANY = 10_000
SPEECH = "qwen3_omni_speech"
VICTIMS = ("qwen3_omni_front", "qwen3_omni_thinker", SPEECH, ORCHESTRATOR, SERVER)
SPARE = {"fds": 12, "threads": 8, "places": 0, "orphans": 0}
"""A process may have this many more than a fresh one: connections that its peers keep open for the next message."""

LEFT_BY_TRITON = {"fds": 8, "threads": 40, "places": 1, "orphans": 0}
"""What 24.10 keeps of each orchestrator that died with requests, until it ends: 32 pool threads and a region."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("faults")
    build(folder / "tiny")
    limits = LimitsConfig(deadline_s=60.0, max_deaths=MANY)
    config = Qwen3OmniSpeechPipelineConfig(model_path=str(folder / "tiny"), limits=limits)
    compile_pipeline(config, folder / "models")
    with Serving(folder / "models", folder / "log", ("--max-deaths", str(MANY))) as serving:
        Mixed(serving.grpc_url, DEADLINE, random.Random()).outcomes()  # everything has run once
        yield serving


def plan(rng: random.Random) -> list[tuple[str, signal.Signals]]:
    if ROUNDS:
        numbers = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)
        return [(rng.choice(VICTIMS), rng.choice(numbers)) for _ in range(ROUNDS)]
    stopped = ((victim, signal.SIGSTOP) for victim in (SPEECH, ORCHESTRATOR, SERVER))
    return [*((victim, signal.SIGKILL) for victim in VICTIMS), *stopped]


@pytest.mark.alone
@pytest.mark.timeout(max(600, 60 * ROUNDS))
def test_every_request_ends_and_the_service_comes_back(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(SEED)
    baseline = serving.held()
    rounds: list[Round] = []
    left: list[str] = []
    say(capsys, f"seed {SEED}, load average {os.getloadavg()[0]:.1f}")
    for number, (victim, hit_by) in enumerate(plan(rng), 1):
        rounds.append(one_round(serving, victim, hit_by, rng))
        say(capsys, f"{number:4} {rounds[-1]}")
        if REPORT:
            with Path(REPORT).open("ab") as report:
                report.write(msgspec.json.encode(rounds[-1]) + b"\n")
        if more := leaked(serving, baseline):
            left.append(f"after round {number}: {more}")
            say(capsys, "\n".join([f"left behind {left[-1]}", *serving.details()]))
    say(capsys, table(rounds))
    say(capsys, f"left behind: {len(left) or 'nothing'}; load average {os.getloadavg()[0]:.1f}")
    assert any(done.ends.get("equal") for done in rounds), "no request ever succeeded"
    assert not [str(done) for done in rounds if done.back_s > BACK_S]
    assert not left


def one_round(serving: Serving, victim: str, hit_by: signal.Signals, rng: random.Random) -> Round:
    serving.wait_said("omni serve: ready", 60, count=1 + deaths_of_server(serving))
    deaths = deaths_of_server(serving)
    done = Round(victim, hit_by.name, SEED)
    load = Mixed(serving.grpc_url, DEADLINE, rng)
    time.sleep(rng.random() * 3)
    server = serving.server()
    process = server if victim == SERVER else serving.stub(victim)
    process.send_signal(hit_by)
    probe = Probe(serving.grpc_url)
    done.back_s = probe.seconds(max(PATIENCE, BACK_S))
    outcomes = load.outcomes()
    done.ends = dict(Counter(outcome.end for outcome in outcomes))
    done.errors = dict(Counter(outcome.error for outcome in outcomes if outcome.error))
    done.longest_s = max(outcome.seconds for outcome in outcomes)
    done.other_deaths = deaths_of_server(serving) - deaths - (victim == SERVER)
    check(outcomes, untouched=victim == SPEECH and not done.other_deaths)
    metrics.wait_empty(serving, ORCHESTRATOR, timeout=30)  # type: ignore[arg-type]
    return done


def check(outcomes: list[Outcome], untouched: bool) -> None:
    """`untouched`: requests for text alone have nothing to do with what died."""
    assert not [outcome for outcome in outcomes if outcome.end == "different"], "an unaffected answer is wrong"
    assert not [outcome for outcome in outcomes if outcome.seconds > DEADLINE + GRACE], "past its deadline"
    if untouched:
        assert not [outcome for outcome in outcomes if not outcome.speech and outcome.end != "equal"]


def deaths_of_server(serving: Serving) -> int:
    return serving.said().count("omni serve: tritonserver died")


def say(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """At once, where the long form is watched."""
    if not ROUNDS:
        print(text)
        return
    with capsys.disabled():
        print(text, flush=True)


def leaked(serving: Serving, baseline: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    end = time.monotonic() + 10
    while (more := growth(serving, baseline)) and time.monotonic() < end:
        time.sleep(0.5)
    return more


def growth(serving: Serving, baseline: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """What is held beyond the baseline and what may be spared."""
    now = serving.held()
    since_start = serving.said().rpartition("omni serve: ready")[2]
    deaths = since_start.count("; loading it again")
    spare = {what: count + deaths * LEFT_BY_TRITON[what] for what, count in SPARE.items()}
    more = {what: now[what] - baseline[what] for what in now}
    return {
        what: over
        for what, counts in more.items()
        if (over := Counter({name: n for name, n in counts.items() if n > spare[what]}))
    }
