"""A pipeline whose stages are on three hosts, each with a server of its own; killed, cut off, and back again."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from tests.e2e.test_oracle import WAVE_TOLERANCE
from tests.hosts.conftest import FRONT, SILENCE, SPEECH, THINK, Hosts
from tests.oracle.cases import load_case
from tests.waiting import wait_until

pytestmark = pytest.mark.alone

LARGE = 1 << 20
LARGE_ANSWER = {"nbytes": LARGE, "last": 255}


def test_large_payloads_go_over_the_network_relay(three_hosts: Hosts) -> None:
    assert three_hosts.line(nbytes=100) == {"nbytes": 100, "last": 99}
    assert three_hosts.line(nbytes=LARGE) == LARGE_ANSWER
    assert three_hosts.wire.carried > 2 * LARGE


@pytest.mark.parametrize(("name", "delay", "loss"), [("all", 0.0, 0.0), ("text", 0.005, 0.01)])
def test_answers_are_those_of_one_host_also_over_a_slow_wire_that_loses_packets(
    three_hosts: Hosts, name: str, delay: float, loss: float
) -> None:
    """`tests/e2e` has that the answers of one host are the oracle's."""
    case = load_case(name)
    question: dict[str, Any] = {"messages": json.dumps(case.openai_messages()), "voice": case.voice}
    with _wire(three_hosts, delay, loss):
        answer = three_hosts.ask("qwen3_omni", **question, sampling_parameters=json.dumps(case.sampling()))
    assert answer["text_output"] == case.text
    assert answer["finish_reason"] == case.answer_ends
    audio = np.array(answer["audio_output"], np.float32)
    assert audio.shape == case.waveform.shape
    assert np.abs(audio - case.waveform).max() < WAVE_TOLERANCE
    assert three_hosts.wire.carried > 2 * LARGE


def test_other_hosts_tell_where_to_ask(three_hosts: Hosts) -> None:
    error = three_hosts.ask("noop_line", host=THINK, text_input="x")["error"]
    assert "UNSUPPORTED" in error and "'front'" in error and three_hosts.wire.addresses[FRONT] in error


def test_a_killed_process_is_told_of_at_once_and_brought_back_by_its_host(three_hosts: Hosts) -> None:
    with _asked(three_hosts, delay=30, delay_stage="b") as answers:
        _stub(three_hosts, THINK, "noop_line_b").kill()
        error = answers.get(timeout=SILENCE)["error"]
    # Whichever is seen first: what looks after it may be held up.
    what = ("died", "was cut off: a connection")
    assert error.startswith(tuple(f"UNAVAILABLE: process b (stages b) on host think {seen}" for seen in what)), error
    assert three_hosts.line(nbytes=LARGE) == LARGE_ANSWER


def test_a_short_cut_only_delays(three_hosts: Hosts) -> None:
    with _asked(three_hosts, nbytes=LARGE, delay=1, delay_stage="b") as answers:
        three_hosts.wire.cut.add(THINK)
        time.sleep(0.8)  # with a pause of the machine, a second for a sign of life and TCP's patience less than SILENCE
        three_hosts.wire.cut.clear()
        assert answers.get(timeout=10) == LARGE_ANSWER


def test_a_host_that_is_cut_off_silently_fails_its_requests_alone_and_comes_back(three_hosts: Hosts) -> None:
    before = _stub(three_hosts, SPEECH, "noop_line_c").pid
    with _asked(three_hosts, delay=SILENCE + 4, delay_stage="c") as answers:
        three_hosts.wire.cut.add(SPEECH)
        try:
            text = three_hosts.ask("qwen3_omni", **_question("Hello", modalities="text"))
            assert text["finish_reason"] == "length"
            error = answers.get(timeout=3 * SILENCE)["error"]
            assert error.startswith("UNAVAILABLE: process c (stages c) on host speech has not been heard of for")
        finally:
            three_hosts.wire.cut.clear()
    assert three_hosts.line(nbytes=LARGE) == LARGE_ANSWER
    assert _stub(three_hosts, SPEECH, "noop_line_c").pid == before
    assert "audio_output" in three_hosts.ask("qwen3_omni", **_question("Hello"))


def test_a_host_that_was_killed_is_back_when_its_server_is(three_hosts: Hosts) -> None:
    with _asked(three_hosts, delay=30, delay_stage="b") as answers:
        three_hosts.servers[THINK].kill()
        three_hosts.stop(THINK)
        error = answers.get(timeout=3 * SILENCE)["error"]
        assert error.startswith("UNAVAILABLE: process b (stages b) on host think was cut off: a connection")
    three_hosts.start(THINK, "noop_line", "noop_line_b")  # the others take longer, and no test comes after this
    assert three_hosts.line(nbytes=LARGE) == LARGE_ANSWER


def _question(text: str, **inputs: Any) -> dict[str, Any]:
    sampling = json.dumps({"temperature": 0, "max_tokens": 12, "ignore_eos": True})
    return {"text_input": text, "sampling_parameters": sampling, **inputs}


@contextmanager
def _wire(hosts: Hosts, delay: float, loss: float) -> Iterator[None]:
    hosts.wire.delay, hosts.wire.loss = delay, loss
    try:
        yield
    finally:
        hosts.wire.delay = hosts.wire.loss = 0.0


@contextmanager
def _asked(hosts: Hosts, delay_stage: str, **sampling: Any) -> Iterator[queue.SimpleQueue[dict[str, Any]]]:
    """A request that has come to the stage where it is to stay, and its answer when that comes."""
    host = {"b": THINK, "c": SPEECH}[delay_stage]
    time.sleep(0.3)  # metrics are written four times a second: until those of earlier requests are
    before = hosts.reached(host, delay_stage)
    answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: answers.put(hosts.line(delay_stage=delay_stage, **sampling)))
    thread.start()
    wait_until(lambda: hosts.reached(host, delay_stage) > before, 20, 0.05)
    yield answers
    thread.join()


def _stub(hosts: Hosts, host: str, model: str) -> psutil.Process:
    """The process of a model."""
    for child in psutil.Process(hosts.servers[host].process.pid).children():
        if any(model in word for word in child.cmdline()):
            return child
    raise AssertionError(f"{model} is not running on {host}")
