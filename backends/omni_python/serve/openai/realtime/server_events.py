"""The events that the server sends."""

from __future__ import annotations

from typing import Any

import msgspec

from omni_python.serve.openai.errors import ApiError
from omni_python.serve.openai.realtime.session import new_id

Json = dict[str, Any]
"""What an item or a session shows of itself."""


class ServerEvent(msgspec.Struct, tag_field="type", kw_only=True):
    event_id: str = msgspec.field(default_factory=lambda: new_id("event"))


class ErrorDetails(msgspec.Struct, frozen=True, kw_only=True):
    """`event_id` is that of the client's event at fault, where there is one."""

    type: str
    code: str | None
    message: str
    param: str | None
    event_id: str | None


class ErrorEvent(ServerEvent, tag="error", kw_only=True):
    error: ErrorDetails


def error_event(error: ApiError, event_id: str | None) -> ErrorEvent:
    return ErrorEvent(error=ErrorDetails(**error.body["error"], event_id=event_id))


def encoded(event: ServerEvent) -> str:
    """As it goes over the socket."""
    return msgspec.json.encode(event).decode()


class SessionCreated(ServerEvent, tag="session.created", kw_only=True):
    session: Json


class SessionUpdated(ServerEvent, tag="session.updated", kw_only=True):
    session: Json


class AudioCommitted(ServerEvent, tag="input_audio_buffer.committed", kw_only=True):
    item_id: str
    previous_item_id: str | None


class AudioCleared(ServerEvent, tag="input_audio_buffer.cleared", kw_only=True):
    pass


class SpeechStarted(ServerEvent, tag="input_audio_buffer.speech_started", kw_only=True):
    """Milliseconds count from the first sample that the session got."""

    audio_start_ms: int
    item_id: str


class SpeechStopped(ServerEvent, tag="input_audio_buffer.speech_stopped", kw_only=True):
    audio_end_ms: int
    item_id: str


class ItemAdded(ServerEvent, tag="conversation.item.added", kw_only=True):
    previous_item_id: str | None
    item: Json


class ItemDone(ServerEvent, tag="conversation.item.done", kw_only=True):
    previous_item_id: str | None
    item: Json


class ItemRetrieved(ServerEvent, tag="conversation.item.retrieved", kw_only=True):
    item: Json


class ItemDeleted(ServerEvent, tag="conversation.item.deleted", kw_only=True):
    item_id: str


class ItemTruncated(ServerEvent, tag="conversation.item.truncated", kw_only=True):
    item_id: str
    content_index: int
    audio_end_ms: int


class ResponseError(msgspec.Struct, frozen=True):
    type: str
    code: str | None
    message: str


class StatusDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    reason: str | None = None
    error: ResponseError | None = None


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "realtime.response"
    status: str = "in_progress"
    status_details: StatusDetails | None = None
    output: list[Json] = []
    conversation_id: str | None
    output_modalities: list[str]
    max_output_tokens: int | str
    audio: Json
    metadata: dict[str, str] | None
    usage: Json | None = None


class ResponseCreated(ServerEvent, tag="response.created", kw_only=True):
    response: ResponseObject


class ResponseDone(ServerEvent, tag="response.done", kw_only=True):
    response: ResponseObject


class OutputItemEvent(ServerEvent, kw_only=True):
    response_id: str
    output_index: int = 0
    item: Json


class OutputItemAdded(OutputItemEvent, tag="response.output_item.added", kw_only=True):
    pass


class OutputItemDone(OutputItemEvent, tag="response.output_item.done", kw_only=True):
    pass


class ContentEvent(ServerEvent, kw_only=True):
    """Of a response's one part of its one item."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0


class ContentPartAdded(ContentEvent, tag="response.content_part.added", kw_only=True):
    part: Json


class ContentPartDone(ContentEvent, tag="response.content_part.done", kw_only=True):
    part: Json


class TextDelta(ContentEvent, tag="response.output_text.delta", kw_only=True):
    delta: str


class TextDone(ContentEvent, tag="response.output_text.done", kw_only=True):
    text: str


class TranscriptDelta(ContentEvent, tag="response.output_audio_transcript.delta", kw_only=True):
    delta: str


class TranscriptDone(ContentEvent, tag="response.output_audio_transcript.done", kw_only=True):
    transcript: str


class AudioDelta(ContentEvent, tag="response.output_audio.delta", kw_only=True):
    """16-bit samples at the session's output rate, in base64."""

    delta: bytes


class AudioDone(ContentEvent, tag="response.output_audio.done", kw_only=True):
    pass
