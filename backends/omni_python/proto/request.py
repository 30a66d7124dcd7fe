"""A client's request after its tensors were read: chat messages, media, and how to answer.

Encoded files are uint8 arrays and not `bytes`, so that they travel by relay like any tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from omni_python.proto.payload import Payload


class TextPart(msgspec.Struct, tag="text", frozen=True):
    text: str


class AudioPart(msgspec.Struct, tag="audio", frozen=True):
    """Either `data`, an encoded file (wav, mp3, ...) as uint8 [n], or `samples`: float32 mono [n] at `sample_rate`.

    Of each kind of media, `url` tells where the client says that the file lies: the whole http(s) or file URL, with
    empty `data` until it is got, or just "data:" where `data` came in one.
    """

    data: np.ndarray | None = None
    samples: np.ndarray | None = None
    sample_rate: int | None = None
    url: str | None = None


class ImagePart(msgspec.Struct, tag="image", frozen=True):
    """An encoded image file (png, jpeg, webp, ...) as uint8 [n]."""

    data: np.ndarray
    url: str | None = None


class VideoPart(msgspec.Struct, tag="video", frozen=True):
    """An encoded video file as uint8 [n]; its sound track is used where it has one and `use_audio` is set."""

    data: np.ndarray
    use_audio: bool = True
    url: str | None = None


ContentPart = TextPart | AudioPart | ImagePart | VideoPart

MAX_PARTS = 4096
"""Of all messages of a request together, where each message counts as one at least: far more than people send, and few
enough to be read at once where all requests are."""

ROLES = ("system", "user", "assistant")
"""Who may speak in a conversation."""


class Message(msgspec.Struct, frozen=True):
    """One turn of the conversation; `role` is one of `ROLES`."""

    role: str
    content: list[ContentPart]

    @property
    def text(self) -> str:
        """Of all its text parts, one after the other."""
        return "".join(part.text for part in self.content if type(part) is TextPart)

    @property
    def has_media(self) -> bool:
        return any(type(part) is not TextPart for part in self.content)


def numbered_parts(messages: Sequence[Message]) -> Iterator[tuple[str, ContentPart]]:
    """Every part in order, with the words by which an error tells where it is: "messages[0].content[1]"."""
    for turn, message in enumerate(messages):
        for index, part in enumerate(message.content):
            yield f"messages[{turn}].content[{index}]", part


class OmniRequest(Payload):
    """What the coordinator submits to the entry stage.

    `modalities` None means what the pipeline gives by default; `sampling` is the client's JSON object,
    whose keys the model family checks.
    """

    messages: list[Message]
    modalities: list[str] | None = None
    voice: str | None = None
    sampling: dict[str, Any] = {}
    stream: bool = False
    echo: bool = False

    @property
    def has_media(self) -> bool:
        return any(message.has_media for message in self.messages)
