"""The items of a conversation, as clients send and see them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, StrictStr, Tag
from pydantic_core import PydanticCustomError

from omni_python.serve.openai.counting import at_most
from omni_python.serve.openai.realtime.audio import BYTES
from omni_python.serve.openai.schema import Body, Text

MAX_ITEM_PARTS = 100


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise PydanticCustomError("pcm", "must be a string of base64")
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise PydanticCustomError("pcm", "not valid base64 ({reason})", {"reason": str(error)}) from None
    if not data or len(data) % BYTES:
        held = {"bytes": len(data)}
        raise PydanticCustomError("pcm", "must hold whole 16-bit samples, and holds {bytes} bytes", held)
    return data


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


Pcm = Annotated[bytes, BeforeValidator(_decoded), PlainSerializer(_encoded, when_used="json")]
"""16-bit samples, base64 in JSON."""
ItemId = Annotated[StrictStr, Field(min_length=1, max_length=64)]
Status = Literal["completed", "incomplete", "in_progress"]


class InputText(Body):
    type: Literal["input_text"] = "input_text"
    text: Text


class InputAudio(Body):
    """`transcript` is the client's note and not given to the model."""

    type: Literal["input_audio"] = "input_audio"
    audio: Pcm
    transcript: Text | None = None


class InputImage(Body):
    type: Literal["input_image"] = "input_image"
    image_url: StrictStr
    detail: Literal["auto"] | None = None


class OutputText(Body):
    type: Literal["output_text"] = "output_text"
    text: Text


class OutputAudio(Body):
    """Speech of the assistant, of which the transcript is what counts in the conversation."""

    type: Literal["output_audio"] = "output_audio"
    transcript: Text


InputPart = Annotated[InputText | InputAudio | InputImage, Field(discriminator="type")]
OutputPart = Annotated[OutputText | OutputAudio, Field(discriminator="type")]
_FEW = at_most(MAX_ITEM_PARTS, "parts")


class _Item(Body):
    id: ItemId | None = None
    object: Literal["realtime.item"] = "realtime.item"
    type: Literal["message"] = "message"
    status: Status = "completed"

    def shown(self, audio: bool = False) -> dict[str, Any]:
        """As JSON for the client; its sound only where `audio` asks for it."""
        hidden = None if audio else {"content": {"__all__": {"audio"}}}
        return self.model_dump(mode="json", exclude_none=True, exclude=hidden)


class SystemItem(_Item):
    role: Literal["system"] = "system"
    content: Annotated[list[InputText], Field(min_length=1), _FEW]


class UserItem(_Item):
    role: Literal["user"] = "user"
    content: Annotated[list[InputPart], Field(min_length=1), _FEW]


class AssistantItem(_Item):
    role: Literal["assistant"] = "assistant"
    content: Annotated[list[OutputPart], _FEW]

    @property
    def text(self) -> str:
        """What was said or written."""
        return "".join(part.text if isinstance(part, OutputText) else part.transcript for part in self.content)


def _message(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(value, Mapping) and kind != "message":
        raise PydanticCustomError(
            "item", "only items of type 'message' are supported, not {kind}", {"kind": repr(kind)}
        )
    return value


Item = Annotated[SystemItem | UserItem | AssistantItem, Field(discriminator="role")]
ItemField = Annotated[Item, BeforeValidator(_message)]
"""An item where a client sends one."""


class ItemReference(Body):
    type: Literal["item_reference"]
    id: ItemId


def _input_kind(value: Any) -> str:
    return "item_reference" if isinstance(value, Mapping) and value.get("type") == "item_reference" else "item"


InputItem = Annotated[
    Annotated[ItemReference, Tag("item_reference")] | Annotated[ItemField, Tag("item")], Discriminator(_input_kind)
]
"""What a response of its own context answers: new items, and those of the conversation by their id."""
