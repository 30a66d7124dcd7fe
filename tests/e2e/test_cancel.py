"""A client that leaves frees everything, in every stage, wherever its request is.

`OMNI_CANCEL_ROUNDS=50` cancels two hundred requests at random moments, four at once a round.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
from collections.abc import Iterator

import pytest

from omni_python.client import AudioChunk, OmniClient, TextDelta
from omni_python.client._events import Event
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics

PIPELINE = "qwen3_omni"
LONG = {"max_tokens": 1500, "ignore_eos": True, "talker": {"max_tokens": 2000, "ignore_eos": True}}
"""It would go on for far longer than anything here is waited for."""
ROUNDS = int(os.environ.get("OMNI_CANCEL_ROUNDS", "15"))


def wait_until(events: Iterator[Event], kind: type) -> None:
    assert any(isinstance(event, kind) for event in events)


@pytest.mark.parametrize("when", ["at once", "first text", "first audio"])
def test_grpc(server: TritonServer, client: OmniClient, when: str) -> None:
    metrics.wait_empty(server, PIPELINE)
    before = metrics.aborted(server, PIPELINE)
    events = client.stream("Tell me everything.", sampling=LONG)
    if when == "at once":
        # the generator has not sent anything yet: send, and give the request time to reach the thinker, but no text
        events = client.stream("Tell me everything.", sampling={**LONG, "stop": ["never"]})
        next(events)
    elif when == "first text":
        wait_until(events, TextDelta)
    else:
        wait_until(events, AudioChunk)
    events.close()
    metrics.wait_left(server, PIPELINE, before + 1)


@pytest.mark.parametrize("chunks", [0, 1, 5])
def test_http_disconnect(server: TritonServer, chunks: int) -> None:
    """After `chunks` events with content. With 0 only the empty first response has come."""
    metrics.wait_empty(server, PIPELINE)
    before = metrics.aborted(server, PIPELINE)
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=10)
    body = {"text_input": "Tell me everything.", "stream": True, "sampling_parameters": json.dumps(LONG)}
    connection.request("POST", f"/v2/models/{PIPELINE}/generate_stream", json.dumps(body))
    response = connection.getresponse()
    seen = -1
    while seen < chunks:
        if response.fp.readline().startswith(b"data:"):
            seen += 1
    connection.sock.close()
    response.close()
    connection.close()
    metrics.wait_left(server, PIPELINE, before + 1)


def test_random_cancellations_leave_nothing(server: TritonServer, client: OmniClient) -> None:
    cancel_at_random(server, client, ROUNDS)


def cancel_at_random(server: TritonServer, client: OmniClient, rounds: int) -> None:
    """Four requests at once a round."""
    rng = random.Random()
    metrics.wait_empty(server, PIPELINE)
    before = metrics.aborted(server, PIPELINE)
    for _ in range(rounds):
        streams = []
        for _ in range(4):
            sampling = {**LONG, "temperature": rng.choice((0.0, 1.0))}
            events = client.stream("Count.", sampling=sampling, modalities=rng.choice((["text"], ["text", "audio"])))
            next(events)
            streams.append(events)
        time.sleep(rng.random() * 0.15)
        for events in streams:
            events.close()
    metrics.wait_left(server, PIPELINE, before + 4 * rounds)
    assert client.chat("Still there?", sampling={"max_tokens": 3}).text
