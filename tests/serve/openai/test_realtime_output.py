"""The item of a response, and a client that handles it before its last event is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omni_python.serve.openai.realtime import server_events as told
from omni_python.serve.openai.realtime.conversation import Conversation
from omni_python.serve.openai.realtime.items import InputText, UserItem
from omni_python.serve.openai.realtime.output import Output
from omni_python.serve.openai.realtime.session import Session


@pytest.mark.parametrize("modality", ["text", "audio"])
def test_an_item_that_is_deleted_while_its_end_is_told(modality: Any) -> None:
    """The client reads slowly, and has asked for it meanwhile."""
    conversation, sent = Conversation(), list[told.ServerEvent]()
    first = conversation.add(UserItem(content=[InputText(text="Well?")]), 24000)

    async def send(event: told.ServerEvent) -> None:
        sent.append(event)
        if isinstance(event, told.TextDone | told.TranscriptDone):
            conversation.remove(event.item_id)

    async def answer() -> None:
        session = Session(type="realtime", output_modalities=[modality])
        output = Output("resp", session, conversation, send)
        await output.write("Yes.")
        await output.end("completed", whole=True)

    asyncio.run(answer())
    assert [entry.id for entry in conversation] == [first.id]
    *_, done, last = sent
    assert isinstance(done, told.ItemDone) and done.previous_item_id == first.id
    assert isinstance(last, told.OutputItemDone) and last.item == done.item
