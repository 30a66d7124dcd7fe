"""A session's conversation: its items in their order, and what the pipeline is given of them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from omni_python.proto.request import MAX_PARTS
from omni_python.proto.wav import wav_of_pcm16
from omni_python.serve.openai.errors import ApiError
from omni_python.serve.openai.realtime.items import (
    AssistantItem,
    InputAudio,
    InputImage,
    InputPart,
    InputText,
    Item,
    OutputAudio,
    OutputPart,
    OutputText,
)
from omni_python.serve.openai.realtime.session import new_id

MAX_ITEMS = 1000
MAX_BYTES = 64 << 20
"""Of text, sound and pictures in one conversation, which all go to the pipeline again with every response."""
PART_BYTES = 1024
"""That a part is counted as beside its content: about what it takes where it is kept."""
_LIMITS = f"at most {MAX_ITEMS} items, {MAX_PARTS - 1} parts and {MAX_BYTES} bytes, where a part costs {PART_BYTES}"
"""The instructions, which come before them, are a part, too."""


@dataclass(frozen=True)
class Entry:
    """An item, which has its id; `rate` is that of its sound in Hz, `spoken_ms` the length of the assistant's."""

    item: Item
    rate: int
    spoken_ms: int = 0

    @property
    def id(self) -> str:
        return self.item.id or ""

    @property
    def parts(self) -> int:
        """As the pipeline counts them."""
        return 1 if isinstance(self.item, AssistantItem) else len(self.item.content)

    @cached_property
    def size(self) -> int:
        """Bytes that it holds, about."""
        return sum(PART_BYTES + _content_size(part) for part in self.item.content)


_ANSWER = Entry(AssistantItem(content=[]), 0)
"""One that does not say anything yet."""


class Conversation:
    """Bounded: what would make it larger than `MAX_ITEMS` and `MAX_BYTES` is refused."""

    def __init__(self) -> None:
        self.id = new_id("conv")
        self._entries: list[Entry] = []

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, item: Item, rate: int, after: str | None = None) -> Entry:
        """Put an item behind the one of id `after`, else at the end; "root" is the beginning. Without an id it gets
        one. Raises `ApiError`, and has then not changed."""
        entry = Entry(item.model_copy(update={"id": item.id or new_id("item"), "status": "completed"}), rate)
        if any(other.id == entry.id for other in self._entries):
            raise ApiError(400, f"The item {entry.id!r} exists already.", "item_exists", "item.id")
        index = 0 if after == "root" else len(self._entries)
        if after not in (None, "root"):
            index = self._index(after, "previous_item_id") + 1
        self.check_room(entry)
        self._entries.insert(index, entry)
        return entry

    def add_answer(self, entry: Entry) -> None:
        """The assistant's, at the end; `check_room` comes before its request."""
        self._entries.append(entry)

    def check_room(self, entry: Entry = _ANSWER) -> None:
        """Raises `ApiError` where this one does not fit in, too."""
        if _is_too_much([*self._entries, entry]):
            raise ApiError(400, f"The conversation is full: {_LIMITS}. Delete some of its items.", "conversation_full")

    def get(self, item_id: str) -> Entry:
        """Raises `ApiError` where there is none."""
        return self._entries[self._index(item_id, "item_id")]

    def before(self, item_id: str) -> str | None:
        """The id of the item before this one. Raises `ApiError`."""
        index = self._index(item_id, "item_id")
        return self._entries[index - 1].id if index else None

    def put(self, entry: Entry) -> None:
        """In place of the one of the same id."""
        self._entries[self._index(entry.id, "item_id")] = entry

    def remove(self, item_id: str) -> None:
        """Raises `ApiError`."""
        _check_done(self.get(item_id))
        del self._entries[self._index(item_id, "item_id")]

    def truncate(self, item_id: str, milliseconds: int) -> None:
        """Forget what the assistant said after so much of its speech. Where in the transcript that was is taken in
        proportion, at the end of a word. Raises `ApiError`."""
        entry = self.get(item_id)
        _check_done(entry)
        content = entry.item.content
        if not isinstance(entry.item, AssistantItem) or not content or not isinstance(content[0], OutputAudio):
            raise ApiError(400, f"The item {item_id!r} has no speech of the assistant.", "invalid_value", "item_id")
        if milliseconds > entry.spoken_ms:
            length = f"the speech has {entry.spoken_ms} ms"
            raise ApiError(400, f"Invalid value {milliseconds}: {length}.", "invalid_value", "audio_end_ms")
        transcript = _cut(entry.item.text, milliseconds / max(entry.spoken_ms, 1))
        item = entry.item.model_copy(update={"content": [OutputAudio(transcript=transcript)]})
        self.put(replace(entry, item=item, spoken_ms=milliseconds))

    def _index(self, item_id: str, param: str) -> int:
        for index, entry in enumerate(self._entries):
            if entry.id == item_id:
                return index
        raise ApiError(400, f"The conversation has no item {item_id!r}.", "item_not_found", param)


def _check_done(entry: Entry) -> None:
    if entry.item.status == "in_progress" and isinstance(entry.item, AssistantItem):
        reason = f"The item {entry.id!r} is still being made; cancel its response first"
        raise ApiError(400, f"{reason}.", "item_in_progress", "item_id")


def messages(entries: Iterable[Entry], instructions: str) -> list[Mapping[str, Any]]:
    """A conversation in the pipeline's form. Raises `ApiError` for one that is larger than a session's may be."""
    entries = list(entries)
    if _is_too_much(entries):
        raise ApiError(400, f"There is too much to answer: {_LIMITS}.", "input_too_large")
    system: list[Mapping[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    return system + [message for entry in entries if (message := _message(entry)) is not None]


def _is_too_much(entries: Sequence[Entry]) -> bool:
    return (
        len(entries) > MAX_ITEMS
        or sum(entry.parts for entry in entries) >= MAX_PARTS
        or sum(entry.size for entry in entries) > MAX_BYTES
    )


def _message(entry: Entry) -> Mapping[str, Any] | None:
    """None for an answer that was cancelled before it said anything."""
    item = entry.item
    if isinstance(item, AssistantItem):
        return {"role": "assistant", "content": item.text} if item.text else None
    return {"role": item.role, "content": [_part(part, entry.rate) for part in item.content]}


def _part(part: InputText | InputAudio | InputImage, rate: int) -> Mapping[str, Any]:
    match part:
        case InputText(text=text):
            return {"type": "text", "text": text}
        case InputAudio(audio=audio):
            data = base64.b64encode(wav_of_pcm16(audio, rate)).decode()
            return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        case InputImage(image_url=url):
            return {"type": "image_url", "image_url": {"url": url}}


def _content_size(part: InputPart | OutputPart) -> int:
    match part:
        case InputText(text=text) | OutputText(text=text):
            return len(text.encode())
        case InputAudio(audio=audio, transcript=transcript):
            return len(audio) + len((transcript or "").encode())
        case InputImage(image_url=url):
            return len(url.encode())
        case OutputAudio(transcript=transcript):
            return len(transcript.encode())


def _cut(text: str, fraction: float) -> str:
    end = round(len(text) * fraction)
    if end >= len(text) or text[end].isspace():
        return text[:end]
    kept, space, _ = text[:end].rpartition(" ")
    return kept if space else ""
