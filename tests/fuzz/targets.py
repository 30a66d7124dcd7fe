"""What is fuzzed: functions of bytes that may raise nothing but the errors that each documents.

Both hypothesis (`test_fuzz.py`, in every test run) and atheris (`scripts/fuzz TARGET`) call them.
"""

from __future__ import annotations

import queue
import socket
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import msgspec
import numpy as np

from omni_python.commands.comparing import Tolerance, differences
from omni_python.config.errors import ConfigError
from omni_python.config.files import dump_pipeline, parse_pipeline
from omni_python.control.framing import MAX_FRAME, Deframer
from omni_python.control.inbox import Inbox
from omni_python.glue.request import parse_request
from omni_python.preprocessing.audio import decode_audio
from omni_python.preprocessing.image import decode_image
from omni_python.preprocessing.media.budget import Budget
from omni_python.preprocessing.media.files import read_file_url
from omni_python.preprocessing.media.http import HttpFetcher
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.preprocessing.video import Sampling, decode_video
from omni_python.proto.codec import CodecError, EncodedPayload, PayloadDecoder
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.messages import ControlMessage, Envelope, decode_message, encode_message
from omni_python.proto.payload import AudioOutput, Payload, TextOutput
from omni_python.proto.recording import MAGIC, decode_recording, encode_recording
from omni_python.proto.request import OmniRequest
from omni_python.proto.tensors import INPUTS

Target = Callable[[bytes], None]

PAYLOADS: tuple[type[Payload], ...] = (OmniRequest, AudioOutput, TextOutput)
_decoder = PayloadDecoder()


def codec(data: bytes) -> None:
    """[payload type: 1 byte][length of the body: 2 bytes][body][tensors' buffer]: what decodes, encodes again."""
    if len(data) < 3:
        return
    kind = PAYLOADS[data[0] % len(PAYLOADS)]
    (length,) = struct.unpack_from("<H", data, 1)
    body, buffer = data[3 : 3 + length], data[3 + length :]
    try:
        payload = _decoder.decode(kind.wire_name, body, np.frombuffer(buffer, np.uint8))
    except CodecError:
        return
    assert type(payload) is kind
    encoded = EncodedPayload(payload)
    room = np.zeros(encoded.nbytes, np.uint8)
    encoded.write_to(room)
    assert EncodedPayload(_decoder.decode(encoded.type, encoded.body, room)).body == encoded.body


def messages(data: bytes) -> None:
    """A frame as it comes from a socket, and the payload that lies inside it."""
    try:
        message = decode_message(data)
    except msgspec.MsgspecError:
        return
    _look_into(message)
    assert encode_message(decode_message(encode_message(message))) == encode_message(message)


def _look_into(value: object) -> None:
    """All of a message is plain data. Without these steps in Python, which count as coverage, atheris would find every
    message like every other."""
    match value:
        case Envelope():
            with suppress(OmniError):
                _decoder.decode(value.type, value.body, np.frombuffer(value.inline, np.uint8))
            _look_into(value.ref)
            _look_into(value.device)
        case msgspec.Struct():
            for name in value.__struct_fields__:
                _look_into(getattr(value, name))
        case tuple() | list():
            for item in value:
                _look_into(item)
        case str():
            assert value.encode().decode() == value
        case float():
            assert isinstance(value, float)
        case int():
            assert isinstance(value, int)
        case _:
            assert value is None or isinstance(value, bytes)


def framing(data: bytes) -> None:
    """[number of lengths: 1 byte][lengths less one: 1 byte each][stream]: the stream in parts of these lengths."""
    lengths = [1 + length for length in data[1 : 1 + data[0]]] if data else []
    stream = data[1 + len(lengths) :]
    whole, too_long = _frames(stream)
    deframer, found = Deframer(), list[bytes]()
    position, part = 0, 0
    try:
        while position < len(stream):
            length = lengths[part % len(lengths)] if lengths else len(stream)
            deframer.feed(stream[position : position + length], found.append)
            position, part = position + length, part + 1
    except InvalidArgument as error:
        assert too_long and str(error)
    else:
        assert not too_long
    assert found == whole


def _frames(stream: bytes) -> tuple[list[bytes], bool]:
    """The whole frames of a stream, up to one that is too long; whether there is such a one."""
    found, rest = list[bytes](), stream
    while len(rest) >= 4:
        length = int.from_bytes(rest[:4], "big")
        if length > MAX_FRAME or len(rest) < 4 + length:
            return found, length > MAX_FRAME
        found.append(rest[4 : 4 + length])
        rest = rest[4 + length :]
    return found, False


def inbox(data: bytes) -> None:
    """A sequence of [connection: 1 byte][length: 1 byte][content], of which length 0 closes the connection: what comes
    to a listening `Inbox` over connections that are used in turn."""
    received: queue.SimpleQueue[ControlMessage] = queue.SimpleQueue()
    streams: list[bytearray] = []  # one for each connection that there was
    with tempfile.TemporaryDirectory(prefix="omni-fuzz-") as folder:
        listening = Inbox(f"{folder}/socket", received.put)
        listening.start()
        connections: dict[int, tuple[socket.socket, bytearray]] = {}
        position = 0
        while position + 2 <= len(data):
            which, length = data[position] % 4, data[position + 1]
            content = data[position + 2 : position + 2 + length]
            position += 2 + length
            if not length and which in connections:
                connections.pop(which)[0].close()
                continue
            if which not in connections:
                connections[which] = (_connected(listening.address), bytearray())
                streams.append(connections[which][1])
            connection, stream = connections[which]
            with suppress(BrokenPipeError, ConnectionResetError):  # after a length that is refused
                connection.sendall(content)
                stream += content
        wanted = [[encode_message(message) for message in _messages_of(bytes(stream))] for stream in streams]
        found = [encode_message(received.get(timeout=20)) for _ in range(sum(map(len, wanted)))]
        for connection, _ in connections.values():
            connection.close()
        listening.stop()
    assert received.empty()
    assert Counter(found) == Counter(frame for of_one in wanted for frame in of_one)
    for of_one in wanted:
        rest = iter(found)
        assert all(frame in rest for frame in of_one), "a connection's messages in another order"


def _connected(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return connection


def _messages_of(stream: bytes) -> list[ControlMessage]:
    found = []
    for frame in _frames(stream)[0]:
        with suppress(msgspec.MsgspecError):
            found.append(decode_message(frame))
    return found


def recording(data: bytes) -> None:
    """A recording's file. Checksums are mended, so that more than they is tried."""
    with suppress(OmniError):
        made = decode_recording(_with_checksums(data))
        for item in made.items:
            if item.payload is not None:
                item.payload.plain()
        assert list(differences(made.outputs, made.outputs, Tolerance())) == []
        assert decode_recording(encode_recording(made)) == made


def _with_checksums(data: bytes) -> bytes:
    mended, at = bytearray(data), len(MAGIC)
    while at + 8 <= len(mended):
        (length,) = struct.unpack_from("<I", mended, at)
        struct.pack_into("<I", mended, at + 4, zlib.crc32(mended[at + 8 : at + 8 + length]))
        at += 8 + length
    return bytes(mended)


def config(data: bytes) -> None:
    """A pipeline.yaml. Dotted paths are cut down to this project's, since reading one imports its module."""
    text = data.decode("utf-8", "replace")
    if "config_cls" in text and "omni_python.models" not in text:
        return
    try:
        pipeline = parse_pipeline(text, "fuzz")
    except ConfigError as error:
        assert str(error)
        return
    again = dump_pipeline(pipeline)
    assert dump_pipeline(parse_pipeline(again, "again")) == again


def request(data: bytes) -> None:
    """Input tensors: a sequence of [input: 1 byte][number of elements: 1 byte][length: 2 bytes][content]."""
    tensors: dict[str, np.ndarray] = {}
    parameters: dict[str, object] = {}
    position = 0
    while position + 4 <= len(data):
        which, count, length = struct.unpack_from("<BBH", data, position)
        content = data[position + 4 : position + 4 + length]
        position += 4 + length
        if which >= 250:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                parameters |= msgspec.json.decode(content, type=dict[str, object])
            continue
        spec = INPUTS[which % len(INPUTS)]
        tensors[spec.name] = _tensor(spec.dtype, count, content)
    with suppress(OmniError):
        parse_request(tensors, parameters)


def _tensor(dtype: str, count: int, content: bytes) -> np.ndarray:
    match dtype:
        case "BYTES":
            size = max(1, len(content) // max(count, 1))
            return np.array([content[n * size : (n + 1) * size] for n in range(count % 8)], np.object_)
        case "BOOL":
            return np.frombuffer(content, np.uint8).astype(bool)
        case "INT32":
            return np.frombuffer(content[: len(content) // 4 * 4], np.int32)
    return np.frombuffer(content[: len(content) // 4 * 4], np.float32)


def image(data: bytes) -> None:
    with suppress(InvalidArgument):
        made = decode_image(data, max_pixels=1_000_000)
        assert made.ndim == 3 and made.shape[2] == 3 and made.shape[0] * made.shape[1] <= 1_000_000


def audio(data: bytes) -> None:
    with suppress(InvalidArgument):
        made = decode_audio(data, max_seconds=20)
        assert made.ndim == 1 and 0 < made.size <= 20 * 16000


def video(data: bytes) -> None:
    with suppress(InvalidArgument):
        made = decode_video(data, Sampling(max_frames=16), max_seconds=20, max_pixels=100_000)
        assert made.frames.ndim == 4 and len(made.frames) <= 16


_EVERY_HOST = HttpFetcher(MediaPolicy(url_hosts=("*",)), lambda host, port: ["10.0.0.1"])


def urls(data: bytes) -> None:
    """A URL where every host is allowed and none is public, and a file URL below a folder: nothing may be got."""
    text = data.decode("utf-8", "surrogateescape")
    for get in (
        lambda budget: _EVERY_HOST.fetch(text, budget),
        lambda budget: read_file_url(text, "/nowhere", budget),
    ):
        try:
            get(Budget(1000, 10))
        except InvalidArgument as error:
            assert str(error)
        else:
            raise AssertionError(f"{text!r} was loaded")


TARGETS: dict[str, Target] = {
    function.__name__: function
    for function in (framing, inbox, codec, messages, recording, config, request, urls, image, audio, video)
}
