"""The item that a response makes: told from its first piece to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np

from omni_python.serve.openai.realtime import server_events as events
from omni_python.serve.openai.realtime.audio import SpokenPcm
from omni_python.serve.openai.realtime.conversation import Conversation, Entry
from omni_python.serve.openai.realtime.items import AssistantItem, OutputAudio, OutputText, Status
from omni_python.serve.openai.realtime.session import Session, new_id

Send = Callable[[events.ServerEvent], Awaitable[None]]


class Output:
    """Begins with the first text or sound; a response without either has no item. With a `conversation` the item is
    added there."""

    def __init__(self, response_id: str, session: Session, conversation: Conversation | None, send: Send) -> None:
        self._response_id, self._session, self._conversation, self._send = response_id, session, conversation, send
        self._entry: Entry | None = None
        self._text = ""
        self._pcm: SpokenPcm | None = None

    async def write(self, text: str) -> None:
        """The next piece of the text, or of what is being said."""
        entry = await self._begun()
        self._text += text
        kind = events.TranscriptDelta if self._session.speaks else events.TextDelta
        await self._send(kind(**self._place(entry), delta=text))

    async def speak(self, samples: np.ndarray, sample_rate: int) -> None:
        """The next float32 samples [n] of the speech."""
        entry = await self._begun()
        wanted = self._session.audio.output
        self._pcm = self._pcm or SpokenPcm(sample_rate, wanted.format.rate, wanted.speed)
        await self._send_audio(entry, self._pcm.push(samples))

    async def end(self, status: Status, whole: bool) -> None:
        """`whole`: no speech is left out, so what is still held back is sent, too."""
        if self._entry is None:
            return
        if whole and self._pcm is not None:
            await self._send_audio(self._entry, self._pcm.end())
        entry = self._updated(self._entry, status)
        # The item is done, so that the client may delete it while a send waits.
        before = self._conversation.before(entry.id) if self._conversation is not None else None
        place = self._place(entry)
        if self._session.speaks:
            await self._send(events.AudioDone(**place))
            await self._send(events.TranscriptDone(**place, transcript=self._text))
        else:
            await self._send(events.TextDone(**place, text=self._text))
        await self._send(events.ContentPartDone(**place, part=self._part()))
        if self._conversation is not None:
            await self._send(events.ItemDone(previous_item_id=before, item=entry.item.shown()))
        await self._send(events.OutputItemDone(response_id=self._response_id, item=entry.item.shown()))

    def shown(self) -> list[events.Json]:
        """A response's `output`."""
        return [self._entry.item.shown()] if self._entry is not None else []

    async def _begun(self) -> Entry:
        if self._entry is not None:
            return self._entry
        item = AssistantItem(id=new_id("item"), status="in_progress", content=[])
        entry = self._entry = Entry(item, self._session.audio.output.format.rate)
        if self._conversation is not None:
            self._conversation.add_answer(entry)
        await self._send(events.OutputItemAdded(response_id=self._response_id, item=item.shown()))
        if self._conversation is not None:
            before = self._conversation.before(entry.id)
            await self._send(events.ItemAdded(previous_item_id=before, item=item.shown()))
        await self._send(events.ContentPartAdded(**self._place(entry), part=self._part()))
        return entry

    def _updated(self, entry: Entry, status: Status) -> Entry:
        content = OutputAudio(transcript=self._text) if self._session.speaks else OutputText(text=self._text)
        item = entry.item.model_copy(update={"status": status, "content": [content]})
        self._entry = replace(entry, item=item, spoken_ms=self._pcm.milliseconds if self._pcm is not None else 0)
        if self._conversation is not None:
            self._conversation.put(self._entry)
        return self._entry

    async def _send_audio(self, entry: Entry, data: bytes) -> None:
        if data:
            await self._send(events.AudioDelta(**self._place(entry), delta=data))

    def _place(self, entry: Entry) -> dict[str, Any]:
        return {"response_id": self._response_id, "item_id": entry.id}

    def _part(self) -> events.Json:
        if self._session.speaks:
            return {"type": "audio", "transcript": self._text}
        return {"type": "text", "text": self._text}
