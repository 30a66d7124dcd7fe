"""From a request's tensors to an `OmniRequest`. Pure: tensors are numpy arrays here, so it is tested without Triton."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from omni_python.proto.errors import InvalidArgument, Unsupported
from omni_python.proto.request import (
    ROLES,
    AudioPart,
    ContentPart,
    ImagePart,
    Message,
    OmniRequest,
    TextPart,
    VideoPart,
)
from omni_python.proto.tensors import AUDIO_FORMATS, INPUTS
from omni_python.proto.trace_context import TraceContext, TraceWish

MAX_TEXT_BYTES = 4 << 20
"""Of text in one request; far more than any context window, and refused before a tokenizer sees it."""

MAX_NAME = 256
"""Bytes of a voice's name, or of a modality's."""

SCHEMES = ("http", "https", "file")
"""Of URLs that a pipeline's media policy may allow."""
MAX_URL = 8192
MAX_RECORDED = 64
"""Stages of a request that are recorded."""
_ADDRESSES = tuple(f"{scheme}://".encode() for scheme in SCHEMES)

_MEDIA = frozenset(("audio", "audio_sample_rate", "audios", "images", "videos"))
"""Inputs."""

N = TypeVar("N", str, str | None)

_OWN_PARAMETERS = ("stream", "exclude_input_in_output", "voice")  # HTTP clients may send these beside the inputs


@dataclass(frozen=True)
class ParsedRequest:
    request: OmniRequest
    audio_format: str
    """One of `AUDIO_FORMATS`: how the client wants speech."""
    timeout: float | None = None
    """Seconds that the request may take; None for the pipeline's own limit."""
    trace: TraceWish | None = None
    """None where the request says nothing of it."""
    record: tuple[str, ...] = ()
    """The stages to be recorded."""


class _Data(msgspec.Struct, forbid_unknown_fields=True):
    data: str
    format: str | None = None


class _Url(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    detail: str | None = None


class _Text(msgspec.Struct, tag="text", forbid_unknown_fields=True):
    text: str


class _InputAudio(msgspec.Struct, tag="input_audio", forbid_unknown_fields=True):
    input_audio: _Data


class _AudioUrl(msgspec.Struct, tag="audio_url", forbid_unknown_fields=True):
    audio_url: _Url


class _ImageUrl(msgspec.Struct, tag="image_url", forbid_unknown_fields=True):
    image_url: _Url


class _VideoUrl(msgspec.Struct, tag="video_url", forbid_unknown_fields=True):
    video_url: _Url


class _ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str | list[_Text | _InputAudio | _AudioUrl | _ImageUrl | _VideoUrl]


_messages = msgspec.json.Decoder(list[_ChatMessage])
_json_object = msgspec.json.Decoder(dict[str, Any])


def parse_request(tensors: Mapping[str, np.ndarray], parameters: Mapping[str, Any] | None = None) -> ParsedRequest:
    """Read a request's input tensors, by name, and its Triton parameters.

    Parameters are where HTTP's `generate` puts JSON keys that are no inputs; as in vllm_backend they may hold sampling
    parameters. Raises `InvalidArgument` or `Unsupported`, naming the input and what is valid.
    """
    inputs = _Inputs(tensors)
    sampling = inputs.json_object("sampling_parameters")
    own: dict[str, Any] = {}
    if parameters:
        loose = {k: v for k, v in parameters.items() if not k.startswith(("triton_", "sequence_"))}
        own = {name: loose.pop(name) for name in _OWN_PARAMETERS if name in loose}
        sampling = {**loose, **sampling}
    timeout = _timeout(sampling.pop("timeout_ms", None))
    wish = _trace_wish(sampling)
    record = _stages(sampling.pop("record", None))
    audio_format = inputs.string("audio_format") or AUDIO_FORMATS[0]
    if audio_format not in AUDIO_FORMATS:
        raise InvalidArgument(f"audio_format: {audio_format!r} is not one of {', '.join(AUDIO_FORMATS)}")
    request = OmniRequest(
        messages=_conversation(inputs),
        modalities=[_name("modalities", name) for name in inputs.strings("modalities")] or None,
        voice=_name("voice", inputs.string("voice") or _parameter(own, "voice", str)),
        sampling=sampling,
        stream=inputs.flag("stream", _parameter(own, "stream", bool) or False),
        echo=not inputs.flag("exclude_input_in_output", _parameter(own, "exclude_input_in_output", bool) is not False),
    )
    return ParsedRequest(request, audio_format, timeout, wish, record)


def _name(where: str, name: N) -> N:
    if name is not None and len(name.encode()) > MAX_NAME:
        raise InvalidArgument(f"{where}: has {len(name.encode())} bytes; names have at most {MAX_NAME}")
    return name


def _timeout(milliseconds: Any) -> float | None:
    """Triton's own `timeout` of a request never reaches a Python model, hence a parameter of this backend."""
    if milliseconds is None:
        return None
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or not milliseconds > 0:
        raise InvalidArgument(f"timeout_ms: must be a number of milliseconds above 0, not {milliseconds!r}")
    return float(milliseconds) / 1000


def _stages(record: Any) -> tuple[str, ...]:
    names = [record] if isinstance(record, str) else record or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) > MAX_RECORDED:
        raise InvalidArgument(f"record: must be a stage's name or a list of at most {MAX_RECORDED}, not {record!r:.80}")
    return tuple(dict.fromkeys(names))


def _trace_wish(sampling: dict[str, Any]) -> TraceWish | None:
    """Takes `trace` and `traceparent` out. The latter may be a header that Triton forwards, whatever its case; one that
    is invalid is passed over, as the standard wants."""
    asked = sampling.pop("trace", None)
    if asked is not None and not isinstance(asked, bool):
        raise InvalidArgument(f"trace: must be true or false, not {asked!r:.80}")
    names = [name for name in sampling if name.lower() == "traceparent"]
    headers = [sampling.pop(name) for name in names]
    context = TraceContext.parse(headers[0]) if headers and isinstance(headers[0], str) else None
    return None if asked is None and context is None else TraceWish(asked, context)


def _parameter(parameters: Mapping[str, Any], name: str, kind: type) -> Any:
    value = parameters.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidArgument(f"{name}: must be a {kind.__name__}, not {value!r}")
    return value


def _conversation(inputs: _Inputs) -> list[Message]:
    media = _media(inputs) if inputs.have_media else []
    text, chat = inputs.string("text_input"), inputs.string("messages")
    if text and chat:
        raise InvalidArgument("give either text_input or messages, not both")
    if chat:
        messages = _chat(chat)
        if media:
            last = messages[-1]
            if last.role != "user":
                raise InvalidArgument(
                    "audio, images and videos belong to the last message, whose role must then be 'user'"
                )
            messages[-1] = Message("user", [*media, *last.content])
    elif text or media:
        messages = [Message("user", [*media, *([TextPart(text)] if text else [])])]
    else:
        raise InvalidArgument("the prompt is empty: give text_input, messages, audio, audios, images or videos")
    size = sum(len(part.text.encode()) for m in messages for part in m.content if type(part) is TextPart)
    if size > MAX_TEXT_BYTES:
        raise InvalidArgument(f"the prompt has {size} bytes of text; at most {MAX_TEXT_BYTES} are accepted")
    return messages


def _media(inputs: _Inputs) -> list[ContentPart]:
    parts: list[ContentPart] = []
    samples = inputs.get("audio")
    rate = inputs.get("audio_sample_rate")
    if samples is not None:
        if rate is None:
            raise InvalidArgument("audio needs audio_sample_rate, its samples per second")
        if not 1000 <= int(rate[0]) <= 384_000:
            raise InvalidArgument(f"audio_sample_rate: {int(rate[0])} is not between 1000 and 384000")
        if not len(samples) or not np.isfinite(samples).all():
            raise InvalidArgument("audio: must hold at least one sample, all finite")
        parts.append(AudioPart(samples=samples, sample_rate=int(rate[0])))
    elif rate is not None:
        raise InvalidArgument("audio_sample_rate is given without audio")
    parts += [AudioPart(data=_file("audios", data)) for data in inputs.files("audios")]
    parts += [ImagePart(_file("images", data)) for data in inputs.files("images")]
    parts += [VideoPart(_file("videos", data)) for data in inputs.files("videos")]
    return parts


def _chat(text: str) -> list[Message]:
    if len(text) > 256 << 20:
        raise InvalidArgument("messages: at most 256 MiB of JSON are accepted")
    try:
        chat = _messages.decode(text)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(
            f"messages: {error}; valid is a JSON list of {{role, content}}, where content is a string or a list of "
            "parts of type text, input_audio, audio_url, image_url or video_url"
        ) from None
    if not chat:
        raise InvalidArgument("messages: the list is empty")
    messages = []
    for index, message in enumerate(chat):
        where = f"messages[{index}]"
        if message.role not in ROLES:
            raise InvalidArgument(f"{where}.role: {message.role!r} is not one of {', '.join(ROLES)}")
        parts = [_Text(message.content)] if isinstance(message.content, str) else message.content
        messages.append(Message(message.role, [_part(part, f"{where}.content[{n}]") for n, part in enumerate(parts)]))
    return messages


def _part(part: Any, where: str) -> ContentPart:
    match part:
        case _Text(text):
            return TextPart(text)
        case _InputAudio(audio):
            return AudioPart(data=_base64(audio.data, f"{where}.input_audio.data"))
        case _AudioUrl(url):
            data, address = _url(url.url, f"{where}.audio_url.url")
            return AudioPart(data=data, url=address)
        case _ImageUrl(url):
            data, address = _url(url.url, f"{where}.image_url.url")
            return ImagePart(data, address)
        case _VideoUrl(url):
            data, address = _url(url.url, f"{where}.video_url.url")
            return VideoPart(data=data, url=address)
    raise InvalidArgument(f"{where}: unknown part")


def _url(url: str, where: str) -> tuple[np.ndarray, str]:
    """A part's `data` and `url`. Whether the file may be got is for the stage that does it; here is the form alone."""
    if not url.startswith("data:"):
        scheme = url.partition(":")[0][:20]
        if scheme.lower() not in SCHEMES:
            raise Unsupported(
                f"{where}: {scheme!r} URLs are not loaded by any server; send the file inline as a data: URL"
            )
        if len(url) > MAX_URL:
            raise InvalidArgument(f"{where}: the URL has {len(url)} characters; at most {MAX_URL} are accepted")
        return np.empty(0, np.uint8), url
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidArgument(f"{where}: a data: URL must look like data:<type>;base64,<data>")
    return _base64(data, where), "data:"


def _base64(data: str, where: str) -> np.ndarray:
    try:
        return _file(where, base64.b64decode(data, validate=True))
    except binascii.Error as error:
        raise InvalidArgument(f"{where}: not valid base64 ({error})") from None


def _file(where: str, data: bytes) -> np.ndarray:
    if not data:
        raise InvalidArgument(f"{where}: the file is empty")
    if data.startswith(_ADDRESSES) and len(data) <= MAX_URL:
        raise InvalidArgument(f"{where}: holds the content of files, not addresses; put a URL into messages")
    return np.frombuffer(data, np.uint8)


class _Inputs:
    """Typed access to the tensors, with the checks that Triton leaves to the model."""

    _SINGLE = frozenset(spec.name for spec in INPUTS if spec.dims == (1,))

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._tensors = tensors

    @property
    def have_media(self) -> bool:
        return not _MEDIA.isdisjoint(self._tensors)

    def get(self, name: str) -> np.ndarray | None:
        array = self._tensors.get(name)
        if array is not None and (array.ndim != 1 or (len(array) != 1 and name in self._SINGLE)):
            valid = [1 if name in self._SINGLE else -1]
            raise InvalidArgument(f"{name}: shape must be {valid}, not {list(array.shape)}")
        return array

    def files(self, name: str) -> list[bytes]:
        array = self.get(name)
        return [] if array is None else [_bytes(item) for item in array]

    def strings(self, name: str) -> list[str]:
        array = self.get(name)
        return [] if array is None else [_text(name, item) for item in array]

    def string(self, name: str) -> str:
        """The text of an input that has one item, "" where it is missing."""
        array = self.get(name)
        return "" if array is None else _text(name, array.item())

    def flag(self, name: str, default: bool) -> bool:
        array = self.get(name)
        return default if array is None else bool(array.item())

    def json_object(self, name: str) -> dict[str, Any]:
        text = self.string(name)
        try:
            return _json_object.decode(text) if text else {}
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"{name}: must be a JSON object ({error})") from None


def _bytes(item: object) -> bytes:
    return bytes(item) if isinstance(item, bytes) else str(item).encode()


def _text(name: str, item: object) -> str:
    try:
        return _bytes(item).decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{name}: must be UTF-8 text") from None
