"""Asks a running server at several concurrencies, with every request traced."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from omni_python.bench.dataset import Question
from omni_python.bench.usage import GENERATOR, UsageSampler, find_server
from omni_python.client import Finished, OmniClient, RequestOptions
from omni_python.planning.server_metrics import Batches, ServerMetrics, read_metrics
from omni_python.proto.errors import Unavailable
from omni_python.proto.trace import Trace

_METRICS_LAG_S = 2.5
"""The server writes its totals every two seconds."""


@dataclass(frozen=True)
class Answered:
    """One request: its trace, and seconds from sending it to the first text, the first speech and the end."""

    trace: Trace
    first_text: float | None
    first_audio: float | None
    whole: float


@dataclass(frozen=True)
class Level:
    """What `clients` that ask again and again saw in `seconds`. `batches` is what each stage computed meanwhile, `cpu`
    the CPU seconds by process where the server runs on this machine (this process is `GENERATOR`)."""

    clients: int
    answers: list[Answered]
    batches: dict[str, Batches]
    cpu: dict[str, float]
    seconds: float


def observe(
    url: str, pipeline: str, metrics_url: str, questions: Sequence[Question], levels: Sequence[int], requests: int
) -> tuple[list[Level], ServerMetrics]:
    """At least `requests` at each level, and three for each client; a few before that are not counted. Raises the
    client's errors, and `Unavailable`."""
    found = []
    endless = itertools.cycle(questions)
    with OmniClient(url, pipeline) as client:
        _ask(client, [next(endless) for _ in range(2)], 1)
        before = _settled(metrics_url, pipeline)
        for clients in levels:
            asked = [next(endless) for _ in range(max(requests, 3 * clients))]
            with UsageSampler(find_server(url), [os.getpid()]) as usage:
                start = time.monotonic()
                answers = _ask(client, asked, clients)
                end = time.monotonic()
            cpu = usage.cpu_seconds(start, end)
            after = _settled(metrics_url, pipeline)
            batches = {stage: done.since(before.batches.get(stage, Batches())) for stage, done in after.batches.items()}
            found.append(Level(clients, answers, batches, cpu if set(cpu) - {GENERATOR} else {}, end - start))
            before = after
    return found, before


def _ask(client: OmniClient, questions: Sequence[Question], clients: int) -> list[Answered]:
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda question: _answer(client, question), questions))


def _answer(client: OmniClient, question: Question) -> Answered:
    options: RequestOptions = {**question.options, "trace": True}
    for event in client.stream(question.text, **options):
        if isinstance(event, Finished) and event.trace is not None:
            return Answered(event.trace, event.first_text, event.first_audio, event.total)
    raise Unavailable("the server gave an answer without its trace; costs are measured from traces")


def _settled(url: str, pipeline: str) -> ServerMetrics:
    time.sleep(_METRICS_LAG_S)
    return read_metrics(url, pipeline)
