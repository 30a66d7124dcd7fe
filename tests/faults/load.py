"""Mixed streaming requests on the tiny model, each with an end that is checked."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_python.client import Answer, OmniClient, OmniClientError
from tests.oracle.cases import CASES, Case, load_case

WAVE_TOLERANCE = 1e-4
GRACE = 4.0
"""Seconds past a request's deadline after which a client gives up by itself. Triton (24.10) never ends the requests of
an orchestrator that died, so only their clients can."""


LINGER = 2.0


@dataclass(frozen=True)
class Outcome:
    """How a request ended: "equal" to the oracle, "different", "failed" by the server, or "gave up" at the client."""

    case: str
    end: str
    error: str
    seconds: float


def ask(url: str, case: Case, speech: bool, deadline: float) -> Outcome:
    """One streamed request with `deadline` seconds; returns at most `GRACE` seconds later."""
    gave_up = threading.Event()
    client = OmniClient(url, "qwen3_omni")

    def give_up() -> None:
        gave_up.set()
        client.close()

    timer = threading.Timer(deadline + GRACE, give_up)
    timer.start()
    start = time.monotonic()
    options: dict[str, Any] = {"messages": case.openai_messages(), "voice": case.voice}
    options["sampling"] = {**case.sampling(), "timeout_ms": int(deadline * 1000)}
    options["modalities"] = ["text", "audio"] if speech else ["text"]
    try:
        answer = Answer.collect(client.stream(**options))
        end, error = ("equal", "") if equals(answer, case, speech) else ("different", answer.text)
    except (OmniClientError, ValueError) as failure:  # a ValueError where the channel was closed under it
        end, error = ("gave up" if gave_up.is_set() else "failed"), str(failure)
    finally:
        timer.cancel()
        # Not at once: a connection that closes while 24.10's gRPC front ends a request can make it abort.
        threading.Timer(LINGER, client.close).start()
    return Outcome(case.name, end, error, time.monotonic() - start)


def equals(answer: Answer, case: Case, speech: bool) -> bool:
    if answer.text != case.text or answer.finished.finish_reason != case.answer_ends:
        return False
    if not speech:
        return len(answer.audio) == 0
    same_length = answer.audio.shape == case.waveform.shape
    return same_length and bool(np.abs(answer.audio - case.waveform).max() < WAVE_TOLERANCE)


class Mixed:
    """16 requests at once, of every kind."""

    def __init__(self, url: str, deadline: float, count: int = 16) -> None:
        rng = random.Random()
        self._pool = ThreadPoolExecutor(count)
        kinds = [(load_case(rng.choice(CASES)), rng.random() < 0.7) for _ in range(count)]
        self._asked = [self._pool.submit(ask, url, case, speech, deadline) for case, speech in kinds]
        self._patience = deadline + GRACE + 20

    def outcomes(self) -> list[Outcome]:
        """When all have ended; a request that never does raises TimeoutError."""
        found = [asked.result(self._patience) for asked in self._asked]
        self._pool.shutdown()
        return found
