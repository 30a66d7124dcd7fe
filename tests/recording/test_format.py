"""The file's format, and what the comparison of outputs tells."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from omni_python.commands.comparing import Tolerance, differences
from omni_python.proto.codec import PayloadDecoder
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.messages import WireError
from omni_python.proto.payload import AudioOutput, Payload, TextOutput
from omni_python.proto.recording import (
    MAX_BYTES,
    End,
    Header,
    Input,
    Output,
    RecordedPayload,
    Recording,
    decode_recording,
    encode_frame,
    encode_recording,
)

HEADER = Header("line", "b", "line_b", "request", '{"seed": 1}', "2026-01-01T00:00:00+00:00", "0.1")


class Mixed(Payload):
    ids: torch.Tensor
    halves: torch.Tensor
    array: np.ndarray
    nested: dict[str, list[np.ndarray]]
    name: str
    empty: torch.Tensor | None = None


def mixed() -> Mixed:
    rng = np.random.default_rng()
    return Mixed(
        torch.from_numpy(rng.integers(0, 1 << 40, (3, 5))),
        torch.from_numpy(rng.standard_normal((4, 2))).to(torch.bfloat16),
        rng.standard_normal(7).astype(np.float32),
        {"parts": [rng.integers(0, 9, 3), np.empty((0, 2), np.float32)]},
        "name",
    )


def stream(*payloads: Payload, target: str = "") -> list[Output]:
    return [Output("stream", target, RecordedPayload.of(payload)) for payload in payloads]


def result(payload: Payload) -> Output:
    return Output("result", payload=RecordedPayload.of(payload))


def told(recorded: list[Output], replayed: list[Output], **tolerance: float) -> list[str]:
    return list(differences(recorded, replayed, Tolerance(**tolerance)))


def test_a_recording_reads_back_as_it_was() -> None:
    payload = mixed()
    items: tuple[Input | Output, ...] = (
        Input("payload", "a", RecordedPayload.of(payload)),
        Input("done", "a"),
        Output("error", error=WireError(3, "wrong")),
    )
    again = decode_recording(encode_recording(Recording(HEADER, items)))
    assert again == Recording(HEADER, items)
    [given, done] = again.inputs
    assert given.payload is not None and done.payload is None
    decoded = given.payload.decode(PayloadDecoder())
    assert isinstance(decoded, Mixed)
    assert torch.equal(decoded.ids, payload.ids) and torch.equal(decoded.halves, payload.halves)
    plain = given.payload.plain()
    assert list(plain) == ["ids", "halves", "array", "nested", "name", "empty"]
    assert np.array_equal(plain["halves"], payload.halves.float().numpy()) and plain["halves"].shape == (4, 2)
    assert np.array_equal(plain["array"], payload.array)
    assert np.array_equal(plain["nested"]["parts"][0], payload.nested["parts"][0])
    assert plain["nested"]["parts"][1].shape == (0, 2) and plain["empty"] is None


def test_every_cut_and_every_changed_byte_is_noticed() -> None:
    items: tuple[Input | Output, ...] = (Input("payload", "a", RecordedPayload.of(mixed())), result(TextOutput("x")))
    data = encode_recording(Recording(HEADER, items))
    for length in range(len(data)):
        with pytest.raises(InvalidArgument):
            decode_recording(data[:length])
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= random.randrange(1, 256)
        with pytest.raises(InvalidArgument):
            decode_recording(bytes(changed))


def test_what_is_too_large_or_has_two_headers_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at most 256 MiB"):
        decode_recording(bytes(MAX_BYTES + 1))
    whole = encode_recording(Recording(HEADER, ()))
    head = whole[: -len(encode_frame(End()))]
    with pytest.raises(InvalidArgument, match="two headers"):
        decode_recording(head + encode_frame(HEADER) + encode_frame(End()))


def test_a_tensor_cannot_reach_beyond_its_bytes() -> None:
    recorded = RecordedPayload.of(mixed())
    cut = RecordedPayload(recorded.type, recorded.fields, recorded.body, recorded.tensors[:-64])
    for read in (cut.plain, lambda: cut.decode(PayloadDecoder())):
        with pytest.raises(OmniError, match="beyond its buffer"):
            read()


def audio(samples: Any, **more: Any) -> AudioOutput:
    return AudioOutput(np.asarray(samples, np.float32), 24000, **more)


def test_equal_outputs_have_no_differences_and_floats_have_a_tolerance() -> None:
    samples = np.random.default_rng().standard_normal(50).astype(np.float32)
    assert told(stream(audio(samples)), stream(audio(samples))) == []
    assert told(stream(audio(samples)), stream(audio(samples + np.float32(5e-5)))) == []
    [line] = told(stream(audio(samples)), stream(audio(samples + np.float32(5e-5))), absolute=1e-6, relative=0)
    assert "50 of 50 values differ" in line and ".samples" in line
    nan = audio([np.nan, 1.0])
    assert told(stream(nan), stream(nan)) == []
    assert len(told(stream(nan), stream(audio([0.0, 1.0])))) == 1


def test_integers_and_text_must_be_equal() -> None:
    one = mixed()
    ids = one.ids.clone()
    ids[1, 2] += 1
    other = Mixed(ids, one.halves, one.array, one.nested, "other")
    first, second = told(stream(one, target="c"), stream(other, target="c"))
    assert f"to c 1.ids: 1 of 15 values differ; the first, at [1, 2], was recorded as {one.ids[1, 2]}" in first
    assert second == "to c 1.name: 'name' was recorded, 'other' was replayed"


def test_a_stream_that_is_cut_elsewhere_is_compared_as_a_whole() -> None:
    whole = [*stream(audio([1, 2]), audio([3])), result(audio([], finish_reason="stop", num_frames=3))]
    other = [*stream(audio([1])), result(audio([2, 3], finish_reason="stop", num_frames=3))]
    assert told(whole, other) == []
    wrong = [*stream(audio([1])), result(audio([2, 4], finish_reason="length", num_frames=3))]
    first, second = told(whole, wrong)
    assert "joined.samples: 1 of 3 values differ" in first and "joined.finish_reason: 'stop'" in second


def test_outputs_that_are_missing_or_of_another_kind_are_told() -> None:
    text = result(TextOutput("x"))
    error = Output("error", error=WireError(1, "broken"))
    assert told([text], []) == ["output 1: result payload.TextOutput was recorded, nothing was replayed"]
    assert told([text], [error]) == [
        "output 1: result payload.TextOutput was recorded, the error 'broken' was replayed"
    ]
    assert told([error], [error]) == []
    assert len(told([result(audio([1]))], [text])) == 1
    strange = [Output("stream", payload=RecordedPayload("t.T", ("a",), b"\x91\x01")), text]
    assert len(told(strange, [text])) == 2
