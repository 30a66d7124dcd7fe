"""Whatever parts a stream arrives in, its messages come out whole, and in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_python.control.framing import MAX_FRAME, Deframer, framed
from omni_python.proto.errors import InvalidArgument


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_messages_come_out_of_any_parts(messages: list[bytes], lengths: list[int]) -> None:
    stream = b"".join(framed(message) for message in messages)
    deframer, found = Deframer(), list[bytes]()
    position, part = 0, 0
    while position < len(stream):
        length = lengths[part % len(lengths)]
        deframer.feed(stream[position : position + length], found.append)
        position, part = position + length, part + 1
    assert found == messages


def test_a_message_that_is_too_long_ends_the_stream() -> None:
    deframer, found = Deframer(), list[bytes]()
    good = framed(b"good")
    with pytest.raises(InvalidArgument, match=f"{MAX_FRAME + 1} bytes"):
        deframer.feed(good + (MAX_FRAME + 1).to_bytes(4, "big"), found.append)
    assert found == [b"good"]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_messages_or_refused_and_never_held_beyond_their_length(parts: list[bytes]) -> None:
    deframer, found = Deframer(), list[bytes]()
    sent = b""
    try:
        for part in parts:
            sent += part
            deframer.feed(part, found.append)
    except InvalidArgument:
        position = sum(4 + len(message) for message in found)
        assert int.from_bytes(sent[position : position + 4], "big") > MAX_FRAME
    assert sent.startswith(b"".join(framed(message) for message in found))
