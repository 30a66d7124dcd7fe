"""Whatever parts a stream arrives in, its messages come out whole, and in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_python.control.framing import MAX_FRAME, Deframer, framed, framed_bytes
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.messages import AbortMessage, CreditMessage, decode_message, encode_message


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_messages_come_out_of_any_parts(messages: list[bytes], lengths: list[int]) -> None:
    stream = b"".join(framed_bytes(message) for message in messages)
    deframer, found = Deframer(), list[bytes]()
    position, part = 0, 0
    while position < len(stream):
        length = lengths[part % len(lengths)]
        deframer.feed(stream[position : position + length], found.append)
        position, part = position + length, part + 1
    assert found == messages


def test_a_message_is_framed_as_its_bytes_are() -> None:
    for message in (AbortMessage(1, "r"), CreditMessage(2, "shm", list(range(1000)))):
        frame = framed(message)
        assert frame == framed_bytes(encode_message(message))
        found: list[bytes] = []
        Deframer().feed(bytes(frame), found.append)
        assert [decode_message(one) for one in found] == [message]


def test_a_message_that_is_too_long_ends_the_stream() -> None:
    deframer, found = Deframer(), list[bytes]()
    good = framed_bytes(b"good")
    with pytest.raises(InvalidArgument, match=f"{MAX_FRAME + 1} bytes"):
        deframer.feed(good + (MAX_FRAME + 1).to_bytes(4, "big"), found.append)
    assert found == [b"good"]
