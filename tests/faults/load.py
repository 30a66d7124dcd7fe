"""Mixed streaming requests on the tiny model, each with an end that is checked."""

from __future__ import annotations

import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_python.client import Answer, Event, Finished, OmniClient, OmniClientError
from omni_python.client._watch import MARGIN
from tests.oracle.cases import CASES, Case, load_case

WAVE_TOLERANCE = 1e-4
GRACE = MARGIN + 10.0
"""Seconds past a request's deadline within which it must have ended at its client; the client itself takes `MARGIN`
where the server does not end it, and the machine may pause."""

LINGER = 2.0

SHORT = {"max_tokens": 2, "timeout_ms": 6000, "talker": {"max_tokens": 2}}
"""Of a request whose answer shows that there is service again; it should take no time of its own."""


@dataclass(frozen=True)
class Outcome:
    """How a request ended: "equal" to the oracle, "different" from it, or with an error of the class named by `end`."""

    case: str
    speech: bool
    end: str
    error: str
    seconds: float


def ask(url: str, case: Case, speech: bool, deadline: float) -> Outcome:
    """One streamed request with `deadline` seconds."""
    client = OmniClient(url, "qwen3_omni")
    start = time.monotonic()
    options: dict[str, Any] = {"messages": case.openai_messages(), "voice": case.voice}
    options["sampling"] = {**case.sampling(), "timeout_ms": int(deadline * 1000)}
    options["modalities"] = ["text", "audio"] if speech else ["text"]
    events: list[Event] = []
    end, error = "", ""
    try:
        for event in client.stream(**options):
            assert not (events and isinstance(events[-1], Finished)), "an event after the last one"
            events.append(event)
    except OmniClientError as failure:
        end, error = type(failure).__name__, str(failure)
    finally:
        # Not at once: a connection that closes while 24.10's gRPC front ends a request can make it abort.
        threading.Timer(LINGER, client.close).start()
    seconds = time.monotonic() - start
    if not end:
        answer = Answer.collect(events)
        end, error = ("equal", "") if equals(answer, case, speech) else ("different", answer.text)
    return Outcome(case.name, speech, end, error, seconds)


def equals(answer: Answer, case: Case, speech: bool) -> bool:
    if answer.text != case.text or answer.finished.finish_reason != case.answer_ends:
        return False
    if not speech:
        return len(answer.audio) == 0
    same_length = answer.audio.shape == case.waveform.shape
    return same_length and bool(np.abs(answer.audio - case.waveform).max() < WAVE_TOLERANCE)


class Mixed:
    """16 requests at once, of every kind."""

    def __init__(self, url: str, deadline: float, rng: random.Random, count: int = 16) -> None:
        self._pool = ThreadPoolExecutor(count)
        kinds = [(load_case(rng.choice(CASES)), rng.random() < 0.7) for _ in range(count)]
        self._asked = [self._pool.submit(ask, url, case, speech, deadline) for case, speech in kinds]
        self._patience = deadline + GRACE + 20

    def outcomes(self) -> list[Outcome]:
        """When all have ended; a request that never does raises TimeoutError."""
        found = [asked.result(self._patience) for asked in self._asked]
        self._pool.shutdown()
        return found


class Probe:
    """Asks for text and speech every `PERIOD` seconds until it is answered, and as soon as somebody listens again."""

    PERIOD = 0.4
    LOOK_PERIOD = 0.05

    def __init__(self, url: str) -> None:
        self._url = url
        self._since = time.monotonic()
        self._served = threading.Event()
        self._seconds = 0.0
        self._asking = threading.Thread(target=self._run)
        self._asking.start()

    def seconds(self, limit: float) -> float:
        """From the start until the first answer. Raises AssertionError where there is none for `limit` seconds."""
        served = self._served.wait(limit)
        self._served.set()
        self._asking.join()
        assert served, f"not served again after {limit:g} s"
        return self._seconds

    def _run(self) -> None:
        while not self._served.is_set():
            if is_listening := self._is_listening():
                threading.Thread(target=self._ask, daemon=True).start()
            self._served.wait(self.PERIOD if is_listening else self.LOOK_PERIOD)

    def _is_listening(self) -> bool:
        host, port = self._url.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True

    def _ask(self) -> None:
        client = OmniClient(self._url, "qwen3_omni")
        try:
            answer = client.chat("Hello?", sampling=SHORT)
            if not self._served.is_set() and len(answer.audio):
                self._seconds = time.monotonic() - self._since
                self._served.set()
        except OmniClientError:
            pass
        finally:
            threading.Timer(LINGER, client.close).start()
