"""The trace of a spoken request shows every stage and hop, and accounts for its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_python.client import AudioChunk, Finished, OmniClient, RequestOptions
from omni_python.proto.trace import ORCHESTRATOR
from tests.tracing.walk import check_lanes, unexplained

MEDIA = Path(__file__).parent.parent / "oracle/media"
UNEXPLAINED = 0.005
"""Seconds at a time that nothing in a trace need account for."""

AGREE = 0.05


def ask(client: OmniClient, stream: bool) -> tuple[Finished, int]:
    """The end of an answer, and the chunks of its speech."""
    options: RequestOptions = {
        "audios": [MEDIA / "voice_16k.wav"],
        "images": [MEDIA / "landscape.jpg"],
        "sampling": {"max_tokens": 16, "ignore_eos": True, "talker": {"max_tokens": 40}},
        "trace": True,
    }
    if not stream:
        answer = client.chat("What do you hear?", **options)
        assert len(answer.audio)
        return answer.finished, 0
    *pieces, last = client.stream("What do you hear?", **options)
    assert isinstance(last, Finished)
    return last, sum(isinstance(piece, AudioChunk) for piece in pieces)


def amiss(last: Finished) -> list[object]:
    """What is so where the machine held a thread up, too."""
    trace = last.trace
    assert trace is not None and trace.state == "completed"
    if not trace.complete:
        return ["a stage has not told"]
    check_lanes(trace)
    found: list[object] = [gap for gap in unexplained(trace) if gap[1] - gap[0] > UNEXPLAINED]
    stages = {stage.stage: stage for stage in last.stages}
    for lane in trace.lanes:
        if lane.stage != ORCHESTRATOR:  # the summary that every answer has agrees
            summary = stages[lane.stage]
            if max(abs(summary.start - lane.start), abs(summary.end - lane.end)) > AGREE:
                found.append((lane, summary))
    return found


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_spoken_requests_time_is_explained(client: OmniClient, stream: bool) -> None:
    for _ in range(5):
        last, chunks = ask(client, stream)
        if not (found := amiss(last)):
            break
    assert not found
    trace = last.trace
    assert trace is not None
    lanes = {lane.stage: lane for lane in trace.lanes}
    assert lanes.keys() == {
        ORCHESTRATOR,
        "preprocessing",
        "image_encoder",
        "audio_encoder",
        "mm_aggregate",
        "thinker",
        "decode",
        "talker_ar",
        "code2wav",
    }
    assert all(any(span.kind == "compute" for span in lane.spans) for lane in trace.lanes)
    hops = {(hop.source, hop.target, hop.stream): hop for hop in trace.hops}
    results = {(source, target) for source, target, is_stream in hops if not is_stream}
    assert results >= {
        (ORCHESTRATOR, "preprocessing"),
        ("preprocessing", "image_encoder"),
        ("preprocessing", "audio_encoder"),
        ("preprocessing", "mm_aggregate"),
        ("image_encoder", "mm_aggregate"),
        ("audio_encoder", "mm_aggregate"),
        ("mm_aggregate", "thinker"),
        ("thinker", "decode"),
        ("thinker", "talker_ar"),
        ("talker_ar", "code2wav"),
        ("decode", ORCHESTRATOR),
        ("code2wav", ORCHESTRATOR),
    }
    assert sum(span.steps for span in lanes["thinker"].spans) >= 16
    assert hops["thinker", "talker_ar", True].count >= 16
    if stream:
        assert hops["decode", ORCHESTRATOR, True].count > 0
        streamed = hops.get(("code2wav", ORCHESTRATOR, True))
        spoken = (streamed.count if streamed else 0) + 1  # the last piece is the result, on a busy machine of all
        assert 1 <= chunks <= spoken, "pieces that wait for the client together come as one"
