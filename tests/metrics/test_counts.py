"""Counters agree with what a client saw of a mix of requests, and the dashboard's queries find their series.

`OMNI_METRICS_REQUESTS=500` runs the long form.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from omni_python.client import AudioChunk, Finished, OmniClient, RequestFailed, TextDelta
from omni_python.client._events import Event
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.metrics.promql import selectors
from tests.metrics.test_names import queries

REQUESTS = int(os.environ.get("OMNI_METRICS_REQUESTS", "40"))
AT_ONCE = 4
TOTALS = 2.3
"""Seconds in which all totals are written, unless what writes them is held up."""
HELD_UP = 2.0
SHORT = {"max_tokens": 6, "talker": {"max_tokens": 14}}
ENDLESS = {"max_tokens": 400, "ignore_eos": True, "talker": {"max_tokens": 2000, "ignore_eos": True}}
ENDS = ("completed", "failed", "aborted")

pytestmark = pytest.mark.timeout(120 + 3 * REQUESTS)


@dataclass
class Seen:
    """What the client saw of one request."""

    end: str = "completed"
    streamed: bool = False
    texts: int = 0
    sounds: int = 0
    samples: int = 0
    usage: dict[str, int] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        match event:
            case TextDelta():
                self.texts += 1
            case AudioChunk(samples, _):
                self.sounds += 1
                self.samples += len(samples)
            case Finished(usage=usage):
                self.usage = usage


def streamed(client: OmniClient) -> Seen:
    seen = Seen(streamed=True)
    for event in client.stream("Tell me something.", sampling=SHORT):
        seen.take(event)
    return seen


def streamed_text(client: OmniClient) -> Seen:
    seen = Seen(streamed=True)
    for event in client.stream("Tell me something.", sampling=SHORT, modalities=["text"]):
        seen.take(event)
    return seen


def whole(client: OmniClient) -> Seen:
    answer = client.chat("Tell me something.", sampling=SHORT)
    return Seen(samples=len(answer.audio), usage=answer.finished.usage)


def left_at(kind: type) -> Callable[[OmniClient], Seen]:
    """Leave a request that would go on for long at its first text, or its first sound."""

    def left(client: OmniClient) -> Seen:
        seen = Seen("aborted", streamed=True)
        events = client.stream("Tell me everything.", sampling=ENDLESS)
        for event in events:
            seen.take(event)
            if isinstance(event, kind):
                break
        events.close()
        return seen

    return left


def failing(client: OmniClient) -> Seen:
    """The preprocessing stage cannot read the picture."""
    with pytest.raises(RequestFailed, match="image"):
        client.chat("What is this?", images=[b"\xff\xd8\xffnothing"])
    return Seen("failed")


def refused(client: OmniClient) -> Seen:
    with pytest.raises(RequestFailed, match="audio_sample_rate"):
        client.chat("What is this?", audio=np.zeros(100, np.float32))
    return Seen("refused")


KINDS = (streamed, streamed, streamed_text, whole, left_at(TextDelta), left_at(AudioChunk), failing, refused)


class Counts:
    """The pipeline's series; `read` tells by how much those with some labels have grown."""

    def __init__(self, server: TritonServer) -> None:
        self._server = server
        self._before = metrics.samples(server)
        self._after = self._before

    def wait_ended(self, ended: int) -> None:
        """Until as many requests more have ended, in what is written of them."""
        limit = time.monotonic() + 15
        while time.monotonic() < limit:
            self.look()
            if self.read("omni_requests_total") >= ended <= self.read("omni_request_duration_seconds_count"):
                break
            time.sleep(0.2)
        time.sleep(TOTALS)
        self.look()

    def look(self) -> None:
        self._after = metrics.samples(self._server)

    def read(self, name: str, **labels: str) -> float:
        labels["pipeline"] = "qwen3_omni"

        def total(samples: list[tuple[str, dict[str, str], float]]) -> float:
            return sum(value for found, of, value in samples if found == name and labels.items() <= of.items())

        return total(self._after) - total(self._before)


@pytest.fixture(scope="module")
def mixed(tiny_server: TritonServer) -> Iterator[tuple[list[Seen], Counts]]:
    """What clients saw of all requests, and the counts."""
    draw = random.Random(time.time_ns())
    kinds = [*KINDS, *draw.choices(KINDS, k=max(0, REQUESTS - len(KINDS)))]
    draw.shuffle(kinds)
    metrics.wait_empty(tiny_server, "qwen3_omni")
    time.sleep(TOTALS + HELD_UP)
    counts = Counts(tiny_server)

    # One for all: a connection that closes while 24.10's gRPC front ends a request can make the server abort.
    with OmniClient(tiny_server.grpc_url, "qwen3_omni") as client, ThreadPoolExecutor(AT_ONCE) as pool:
        seen = list(pool.map(lambda kind: kind(client), kinds))
        counts.wait_ended(sum(one.end != "refused" for one in seen))
    yield seen, counts


def patient(test: Callable[..., None]) -> Callable[..., None]:
    """The counts agree once all are written: what counts too much, or never all, fails the test all the same."""

    @functools.wraps(test)
    def again(*args: Any, counts: Counts, **others: Any) -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                return test(*args, counts=counts, **others)
            except AssertionError:
                time.sleep(0.5)
                counts.look()
        test(*args, counts=counts, **others)

    return again


@pytest.fixture
def seen(mixed: tuple[list[Seen], Counts]) -> list[Seen]:
    return mixed[0]


@pytest.fixture
def counts(mixed: tuple[list[Seen], Counts]) -> Counts:
    return mixed[1]


@patient
def test_requests_by_final_state(seen: list[Seen], counts: Counts) -> None:
    ends = Counter(one.end for one in seen)
    for end in ENDS:
        assert counts.read("omni_requests_total", state=end) == ends[end], end
        assert counts.read("omni_request_duration_seconds_count", state=end) == ends[end], end
        assert counts.read("omni_request_duration_seconds_bucket", state=end, le="+Inf") == ends[end], end
    assert counts.read("omni_requests_refused_total", code="INVALID_ARGUMENT") == ends["refused"]
    assert counts.read("omni_requests_refused_total") == ends["refused"]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("omni_input_tokens_total", "input_tokens"),
        ("omni_output_tokens_total", "output_tokens"),
        ("omni_audio_frames_total", "audio_frames"),
        ("omni_audio_samples_total", "audio_samples"),
    ],
)
@patient
def test_tokens_and_frames(seen: list[Seen], counts: Counts, name: str, key: str) -> None:
    told = sum(one.usage.get(key, 0) for one in seen if one.end == "completed")
    assert counts.read(name, state="completed") == told > 0


@patient
def test_samples_that_arrived(seen: list[Seen], counts: Counts) -> None:
    completed = sum(one.samples for one in seen if one.end == "completed")
    assert counts.read("omni_audio_samples_total", state="completed") == completed
    assert counts.read("omni_audio_seconds_total", state="completed") == pytest.approx(completed / 24000)
    left = sum(one.samples for one in seen if one.end == "aborted")
    assert counts.read("omni_audio_samples_total", state="aborted") >= left > 0


@patient
def test_first_chunks_of_streams(seen: list[Seen], counts: Counts) -> None:
    spoken = [one for one in seen if one.streamed and one.sounds]
    heard = counts.read("omni_time_to_first_audio_seconds_count")
    unheard = sum(one.end == "aborted" and not one.sounds for one in seen)  # sound may have come after they left
    assert counts.read("omni_time_to_first_text_seconds_count") == sum(one.streamed and one.texts > 0 for one in seen)
    assert len(spoken) <= heard <= len(spoken) + unheard
    assert counts.read("omni_audio_underrun_seconds_count") == heard
    assert counts.read("omni_audio_streams_total") == heard
    chunks = sum(one.sounds for one in seen)
    assert counts.read("omni_chunk_interval_seconds_count", kind="audio") + heard >= chunks
    whole = sum(one.end == "completed" and one.samples > 0 for one in seen)
    assert counts.read("omni_real_time_factor_ratio_count") == whole


@patient
def test_stages_and_edges(seen: list[Seen], counts: Counts) -> None:
    ends = Counter(one.end for one in seen)
    admitted = len(seen) - ends["refused"]
    entry = {"source": "client", "target": "preprocessing"}
    assert counts.read("omni_edge_payloads_total", **entry) == admitted
    assert counts.read("omni_stage_requests_total", stage="preprocessing") == admitted
    assert counts.read("omni_stage_errors_total", stage="preprocessing", code="INVALID_ARGUMENT") == ends["failed"]
    assert counts.read("omni_stage_errors_total") == ends["failed"]
    assert counts.read("omni_stage_run_seconds_count", stage="preprocessing") == admitted - ends["failed"]
    assert counts.read("omni_stage_aborts_total") >= ends["aborted"]
    assert counts.read("omni_stage_aborts_total", stage="preprocessing") == 0
    wait, run, requests = (
        counts.read(name, stage="thinker")
        for name in ("omni_stage_wait_seconds_count", "omni_stage_run_seconds_count", "omni_stage_requests_total")
    )
    assert wait == requests == run + counts.read("omni_stage_aborts_total", stage="thinker")
    assert counts.read("omni_stage_batch_size_sum", stage="thinker") >= counts.read(
        "omni_output_tokens_total", state="completed"
    )
    sent = sum(one.texts + one.sounds for one in seen if one.end == "completed")
    assert counts.read("omni_edge_payloads_total", target="client") >= sent


def test_nothing_is_held_afterwards(mixed: tuple[list[Seen], Counts], tiny_server: TritonServer) -> None:
    metrics.wait_empty(tiny_server, "qwen3_omni")


def test_the_dashboard_finds_data(mixed: tuple[list[Seen], Counts], tiny_server: TritonServer) -> None:
    series = metrics.samples(tiny_server)
    for query in queries():
        for selector in selectors(query):
            if "_gpu_" not in selector.name:
                found = any(selector.matches(name, labels) for name, labels, _ in series)
                assert found, f"nothing for {selector} of {query}"
