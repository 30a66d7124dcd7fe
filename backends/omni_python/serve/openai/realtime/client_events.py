"""The events that clients send."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import jiter
from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from omni_python.proto.json_size import MAX_JSON_VALUES, has_too_many_values
from omni_python.serve.openai.counting import at_most
from omni_python.serve.openai.errors import ApiError, validation_error
from omni_python.serve.openai.realtime.conversation import MAX_ITEMS
from omni_python.serve.openai.realtime.items import InputItem, ItemField, ItemId, Pcm
from omni_python.serve.openai.realtime.session import ResponseOptions, Session
from omni_python.serve.openai.schema import Body

EventId = Annotated[StrictStr, Field(max_length=512)]


class _Event(Body):
    event_id: EventId | None = None


class SessionUpdate(_Event):
    type: Literal["session.update"]
    session: Session


class AudioAppend(_Event):
    type: Literal["input_audio_buffer.append"]
    audio: Pcm


class AudioCommit(_Event):
    type: Literal["input_audio_buffer.commit"]


class AudioClear(_Event):
    type: Literal["input_audio_buffer.clear"]


class ItemCreate(_Event):
    """`previous_item_id` is the item after which to put it: None for the last, "root" for the beginning."""

    type: Literal["conversation.item.create"]
    item: ItemField
    previous_item_id: ItemId | None = None


class ItemRetrieve(_Event):
    type: Literal["conversation.item.retrieve"]
    item_id: ItemId


class ItemDelete(_Event):
    type: Literal["conversation.item.delete"]
    item_id: ItemId


class ItemTruncate(_Event):
    type: Literal["conversation.item.truncate"]
    item_id: ItemId
    content_index: Literal[0]
    audio_end_ms: Annotated[StrictInt, Field(ge=0)]


class ResponseRequest(ResponseOptions):
    """`input` is answered instead of the conversation; `conversation` "none" keeps the answer out of it."""

    conversation: Literal["auto", "none"] = "auto"
    input: Annotated[list[InputItem], at_most(MAX_ITEMS, "items")] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None


class ResponseCreate(_Event):
    type: Literal["response.create"]
    response: ResponseRequest = ResponseRequest()


class ResponseCancel(_Event):
    type: Literal["response.cancel"]
    response_id: StrictStr | None = None


ClientEvent = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
)
_events: TypeAdapter[ClientEvent] = TypeAdapter(Annotated[ClientEvent, Field(discriminator="type")])


class BadEvent(Exception):
    """What a client sent is no event of `ClientEvent`; `event_id` is what it called it, where that can be told."""

    def __init__(self, error: ApiError, event_id: str | None) -> None:
        super().__init__(error.message)
        self.error, self.event_id = error, event_id


def parse(text: str | None) -> ClientEvent:
    """Of a text message; None stands for a binary one. Raises `BadEvent`."""
    if text is None:
        raise BadEvent(ApiError(400, "Events are JSON in text messages, not binary ones.", "invalid_json"), None)
    data = text.encode()
    if has_too_many_values(data):
        reason = (
            f"The event has more than {MAX_JSON_VALUES} values in its lists and objects, the most that are accepted"
        )
        raise BadEvent(ApiError(400, f"{reason}.", "too_large"), None)
    try:
        event = jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        raise BadEvent(ApiError(400, f"The event is not valid JSON: {error}.", "invalid_json"), None) from None
    try:
        return _events.validate_python(event)
    except ValidationError as error:
        problems: list[Any] = list(error.errors(include_url=False, include_input=False))
    event_id = event.get("event_id") if isinstance(event, dict) else None
    problems = [{**problem, "loc": _path(problem, event)} for problem in problems]
    raise BadEvent(_refusal(problems), event_id if isinstance(event_id, str) else None)


def _refusal(problems: list[Any]) -> ApiError:
    if problems[0]["type"] in ("union_tag_invalid", "union_tag_not_found") and not problems[0]["loc"]:
        return ApiError(400, f"Unknown kind of event: {problems[0]['msg']}.", "invalid_event_type", "type")
    return validation_error(problems)


def _path(problem: Any, event: Any) -> tuple[str | int, ...]:
    """Where in the event a problem lies: pydantic's location without the names of the kinds that it passed."""
    path: list[str | int] = []
    here = event
    for depth, part in enumerate(problem["loc"], 1):
        inside = part in here if isinstance(here, dict) else isinstance(here, list) and isinstance(part, int)
        if inside:
            here = here[part]
        if inside or (problem["type"] == "missing" and depth == len(problem["loc"])):
            path.append(part)
    return tuple(path)
