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


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_spoken_requests_time_is_explained(client: OmniClient, stream: bool) -> None:
    options: RequestOptions = {
        "audios": [MEDIA / "voice_16k.wav"],
        "images": [MEDIA / "landscape.jpg"],
        "sampling": {"max_tokens": 16, "ignore_eos": True, "talker": {"max_tokens": 40}},
        "trace": True,
    }
    if stream:
        *pieces, last = client.stream("What do you hear?", **options)
        chunks = sum(isinstance(piece, AudioChunk) for piece in pieces)
    else:
        answer = client.chat("What do you hear?", **options)
        last, chunks = answer.finished, 0
        assert len(answer.audio)
    assert isinstance(last, Finished)
    trace = last.trace
    assert trace is not None and trace.complete and trace.state == "completed"
    check_lanes(trace)
    assert not [gap for gap in unexplained(trace) if gap[1] - gap[0] > UNEXPLAINED]
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
    stages = {stage.stage: stage for stage in last.stages}
    for stage, lane in lanes.items():
        if stage != ORCHESTRATOR:  # the summary that every answer has agrees
            assert stages[stage].start == pytest.approx(lane.start, abs=0.05)
            assert stages[stage].end == pytest.approx(lane.end, abs=0.05)
