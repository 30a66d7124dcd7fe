"""What a realtime session refuses to keep or to answer."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from omni_python.proto.json_size import MAX_JSON_VALUES
from omni_python.proto.request import MAX_PARTS
from omni_python.serve.openai.errors import ApiError
from omni_python.serve.openai.realtime import client_events as asked
from omni_python.serve.openai.realtime.conversation import (
    MAX_BYTES,
    MAX_ITEMS,
    PART_BYTES,
    Conversation,
    Entry,
    messages,
)
from omni_python.serve.openai.realtime.items import MAX_ITEM_PARTS, InputAudio, InputText, UserItem

RATE = 24000
TEXT = {"type": "input_text", "text": ""}
USER = {"type": "message", "role": "user"}


def filled(item: dict[str, Any]) -> int:
    """How often an item, as a client sends it, goes into a conversation until that is full."""
    event = asked.parse(json.dumps({"type": "conversation.item.create", "item": item}, ensure_ascii=False))
    assert isinstance(event, asked.ItemCreate)
    conversation = Conversation()
    for count in range(2 * MAX_ITEMS):
        try:
            conversation.add(event.item, RATE)
        except ApiError as error:
            assert error.code == "conversation_full" and str(MAX_BYTES) in error.message
            return count
    raise AssertionError("it is never full")


@pytest.mark.parametrize(
    ("part", "size"),
    [
        ({"type": "input_audio", "audio": "AAA=", "transcript": "x" * (4 << 20)}, 2 + (4 << 20)),
        ({"type": "input_audio", "audio": base64.b64encode(bytes(4 << 20)).decode()}, 4 << 20),
        ({"type": "input_text", "text": "\u20ac" * (1 << 20)}, 3 << 20),
        ({"type": "input_image", "image_url": "data:image/png," + "\u20ac" * (1 << 20)}, 15 + (3 << 20)),
    ],
    ids=["transcript", "audio", "text", "image"],
)
def test_a_conversation_holds_so_many_bytes(part: dict[str, Any], size: int) -> None:
    assert filled({**USER, "content": [part]}) == MAX_BYTES // (size + PART_BYTES)


@pytest.mark.parametrize("kind", ["output_text", "output_audio"])
def test_what_a_client_lets_the_assistant_have_said_counts_alike(kind: str) -> None:
    field = "text" if kind == "output_text" else "transcript"
    item = {"type": "message", "role": "assistant", "content": [{"type": kind, field: "\u20ac" * (1 << 20)}] * 2}
    assert filled(item) == MAX_BYTES // (2 * (PART_BYTES + (3 << 20)))


def test_a_conversation_holds_as_many_parts_as_a_pipeline_takes() -> None:
    assert filled({**USER, "content": [TEXT] * MAX_ITEM_PARTS}) == (MAX_PARTS - 1) // MAX_ITEM_PARTS
    assert filled({**USER, "content": [TEXT]}) == MAX_ITEMS


def refused(event: dict[str, Any]) -> ApiError:
    with pytest.raises(asked.BadEvent) as bad:
        asked.parse(json.dumps(event))
    return bad.value.error


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
@pytest.mark.parametrize("part", [TEXT, 0], ids=["text", "nonsense"])
def test_an_item_of_too_many_parts_is_refused(role: str, part: Any) -> None:
    item = {"type": "message", "role": role, "content": [part] * 20_000}
    error = refused({"type": "conversation.item.create", "item": item})
    assert error.param == "item.content" and f"has 20000 parts; at most {MAX_ITEM_PARTS}" in error.message


def test_events_are_bounded() -> None:
    reference = {"type": "item_reference", "id": "x"}
    error = refused({"type": "response.create", "response": {"input": [reference] * (MAX_ITEMS + 1)}})
    assert error.param == "response.input" and f"at most {MAX_ITEMS} are accepted" in error.message
    error = refused({"type": "session.update", "session": {"talker": {"x": [0] * (MAX_JSON_VALUES + 1)}}})
    assert error.code == "too_large" and f"more than {MAX_JSON_VALUES} values" in error.message
    for value in (0, 2**31, 10**30):
        error = refused({"type": "session.update", "session": {"type": "realtime", "max_output_tokens": value}})
        assert (error.param, error.code) == ("session.max_output_tokens", "invalid_value")
        error = refused({"type": "response.create", "response": {"max_output_tokens": value}})
        assert (error.param, error.code) == ("response.max_output_tokens", "invalid_value")


def test_what_refers_to_one_item_again_and_again_is_not_answered() -> None:
    sound = Entry(UserItem(content=[InputAudio(audio=bytes(8 << 20))]), RATE)
    assert len(messages([sound] * 7, "Be brief.")) == 8
    with pytest.raises(ApiError, match=f"too much to answer: .* and {MAX_BYTES} bytes"):
        messages([sound] * 8, "Be brief.")
    many = Entry(UserItem(content=[InputText(text="")] * MAX_ITEM_PARTS), RATE)
    with pytest.raises(ApiError, match=f"too much to answer: .*{MAX_PARTS - 1} parts"):
        messages([many] * 41, "")
