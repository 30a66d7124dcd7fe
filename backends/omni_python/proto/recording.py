"""A recording: what went into one stage for one request, and what came out, as one file.

The file is `MAGIC`, whose last byte is the format's version, and then frames: length and CRC-32 of what follows (4
bytes each, little-endian), and one MessagePack struct. First a `Header`, then inputs and outputs in the order in which
they passed, at last an `End`; a file without it is truncated. Payloads are in the project's codec: nothing in a file
can run code, every length is checked, and a tensor cannot reach beyond its bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from omni_python.proto.codec import CodecError, EncodedPayload, PayloadDecoder
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.messages import WireError
from omni_python.proto.payload import Payload

VERSION = 1
MAGIC = b"omnirec" + bytes([VERSION])

MAX_BYTES = 256 << 20
"""Of a whole file. Longer ones are neither written nor read."""

MAX_FRAMES = 100_000

SUFFIX = ".omnirec"

DRAFT = ".part"
"""Ends the name of a file that is being written. One that stays is of a process that was killed: it lacks its end."""

_FRAME = struct.Struct("<II")

RECORD_DIRECTORY = "OMNI_RECORD_DIR"
"""The environment variable that names a server's folder for recordings; without it none are made, for they hold what
users sent."""

ALLOW_REPLAY = "OMNI_ALLOW_REPLAY"
"""The environment variable that lets a server's stages replay recordings."""

Text = Annotated[str, msgspec.Meta(max_length=4096, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")]
"""One line, for a terminal."""


class RecordedPayload(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`fields` names the struct's fields, so that a file explains itself where the type is not known."""

    type: Text
    fields: tuple[Text, ...]
    body: bytes
    tensors: bytes = b""

    @classmethod
    def of(cls, payload: Payload) -> RecordedPayload:
        """Copies the payload's tensors. Raises `CodecError` for one that cannot leave its process."""
        encoded = EncodedPayload(payload)
        return cls(encoded.type, payload.__struct_fields__, encoded.body, encoded.inline())

    def decode(self, decoder: PayloadDecoder) -> Payload:
        """Raises `CodecError` for what is malformed, `UnknownPayload` for a type that this process has not imported."""
        return decoder.decode(self.type, self.body, np.frombuffer(self.tensors, np.uint8))

    def plain(self) -> dict[str, Any]:
        """The payload's values by field, without its type: structs as dicts or lists, tensors as arrays (bfloat16 and
        float8 as float32). Raises `CodecError` for what is malformed."""
        values = PayloadDecoder().decode_plain(self.body, np.frombuffer(self.tensors, np.uint8))
        if len(values) > len(self.fields):
            raise CodecError(f"malformed {self.type}: its fields do not fit its names")
        return dict(zip(self.fields, values, strict=False))


class _Frame(msgspec.Struct, array_like=True, frozen=True, tag=True, gc=False):
    pass


class Header(_Frame, frozen=True, tag="header"):
    """`model` is the Triton model of the stage's process; `sampling` the client's parameters, as JSON; `created` in
    ISO 8601; `software` the version of this package that wrote the file."""

    pipeline: Text
    stage: Text
    model: Text
    request_id: Text
    sampling: str = "{}"
    created: Text = ""
    software: Text = ""


class Input(_Frame, frozen=True, tag="input"):
    """From the stage `source`, or "client": a whole payload, a stream's chunk, or a stream's end (no payload)."""

    kind: Literal["payload", "chunk", "done"]
    source: Text
    payload: RecordedPayload | None = None


class Output(_Frame, frozen=True, tag="output"):
    """What the scheduler gave: a stream's chunk for `target` ("" is the client), the result, or what it failed with."""

    kind: Literal["stream", "result", "error"]
    target: Text = ""
    payload: RecordedPayload | None = None
    error: WireError | None = None


class End(_Frame, frozen=True, tag="end"):
    """Everything is there. A recording without a result and without an error is of a request that was aborted."""


Item = Input | Output

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Header | Input | Output | End).decode


def encode_frame(frame: Header | Input | Output | End) -> bytes:
    """A frame with its length and checksum."""
    body = _encode(frame)
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


@dataclass(frozen=True)
class Recording:
    """A file's contents."""

    header: Header
    items: tuple[Item, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(item for item in self.items if isinstance(item, Input))

    @property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(item for item in self.items if isinstance(item, Output))


def decode_recording(data: bytes | memoryview) -> Recording:
    """Raises `InvalidArgument` for what is no recording, is of another version, truncated or altered."""
    if len(data) > MAX_BYTES:
        raise InvalidArgument(f"a recording has at most {MAX_BYTES >> 20} MiB, and this has {len(data) >> 20}")
    magic = bytes(data[: len(MAGIC)])
    if magic[:-1] != MAGIC[:-1]:
        raise InvalidArgument("this is no recording: `omni record` writes them")
    if magic != MAGIC:
        raise InvalidArgument(f"this recording has version {magic[-1]} of the format; this software reads {VERSION}")
    frames = _frames(memoryview(data)[len(MAGIC) :])
    header = next(frames, None)
    if not isinstance(header, Header):
        raise InvalidArgument("the recording is truncated or altered: it has no header")
    items: list[Item] = []
    for frame in frames:
        if isinstance(frame, End):
            if next(frames, None) is not None:
                raise InvalidArgument("the recording is altered: something comes after its end")
            return Recording(header, tuple(items))
        if isinstance(frame, Header) or len(items) == MAX_FRAMES:
            raise InvalidArgument("the recording is altered: it has two headers, or too many frames")
        items.append(frame)
    raise InvalidArgument("the recording is truncated: its end is missing; was the stage's process killed meanwhile?")


def encode_recording(recording: Recording) -> bytes:
    """A whole file."""
    return MAGIC + b"".join(map(encode_frame, (recording.header, *recording.items, End())))


def _frames(data: memoryview) -> Iterator[Header | Input | Output | End]:
    at = 0
    while at < len(data):
        if len(data) - at < _FRAME.size:
            raise InvalidArgument("the recording is truncated within a frame")
        length, checksum = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if length > len(data) - at:
            raise InvalidArgument("the recording is truncated within a frame")
        body = data[at : at + length]
        if zlib.crc32(body) != checksum:
            raise InvalidArgument(f"the recording is altered: a checksum is wrong at byte {at + len(MAGIC)}")
        at += length
        try:
            yield _decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"the recording is altered: {error}") from None
