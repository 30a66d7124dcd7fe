"""Messages in a stream of bytes: each after its length, a big-endian 32-bit number."""

from __future__ import annotations

import struct
from collections.abc import Callable

from omni_python.proto.errors import InvalidArgument

MAX_FRAME = 64 << 20
"""Bytes; larger payloads never travel inside a message."""

_LENGTH = struct.Struct(">I")


def framed(message: bytes) -> bytes:
    """An encoded message as it goes into a stream. Raises `InvalidArgument` for one that is longer than `MAX_FRAME`:
    its receiver would end the stream, and lose what others send on it."""
    check_length(len(message))
    return _LENGTH.pack(len(message)) + message


class Deframer:
    """Finds the messages of one stream, whatever parts it arrives in."""

    def __init__(self) -> None:
        self._rest = bytearray()  # what has come of the message that is not whole yet

    def feed(self, data: bytes, take: Callable[[bytes], object]) -> None:
        """`take` each message that `data`, the stream's next part, makes whole. Raises `InvalidArgument` for one that
        is longer than `MAX_FRAME`: what follows it cannot be told apart any more."""
        start = _LENGTH.size
        if not self._rest and len(data) >= start and _LENGTH.unpack_from(data)[0] == len(data) - start:
            take(data[start:])  # one message, as nearly always
            return
        self._rest += data
        begin = 0
        while len(self._rest) - begin >= start:
            length = _LENGTH.unpack_from(self._rest, begin)[0]
            check_length(length)
            end = begin + start + length
            if len(self._rest) < end:
                break
            take(bytes(memoryview(self._rest)[begin + start : end]))
            begin = end
        del self._rest[:begin]


def check_length(length: int) -> None:
    """Raises `InvalidArgument` for a message of more bytes than `MAX_FRAME`."""
    if length > MAX_FRAME:
        raise InvalidArgument(f"a message of {length} bytes; {MAX_FRAME} is the most")
