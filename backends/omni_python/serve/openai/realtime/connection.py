"""One client's session: what each of its events does.

The state is small: the session's configuration, the conversation, what was heard, and at most one running response.
Events are handled one after the other, in the order in which they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.websockets import WebSocket, WebSocketDisconnect

from omni_python.client import AsyncOmniClient
from omni_python.proto.info import PipelineInfo
from omni_python.serve.openai.errors import ApiError
from omni_python.serve.openai.realtime import client_events as asked
from omni_python.serve.openai.realtime import server_events as events
from omni_python.serve.openai.realtime.conversation import Conversation, Entry, messages
from omni_python.serve.openai.realtime.hearing import Hearing, TurnBegun, TurnEnded
from omni_python.serve.openai.realtime.items import InputAudio, InputItem, ItemReference, UserItem
from omni_python.serve.openai.realtime.response import CancelReason, Plan, Response
from omni_python.serve.openai.realtime.session import ServerVad, Session

SEND_S = 30.0
"""A client that takes nothing for so long is gone. Until then its response waits, and with it the pipeline's stream."""


class Connection:
    def __init__(self, socket: WebSocket, client: AsyncOmniClient, info: PipelineInfo) -> None:
        """`socket` is accepted; `info` is what the client's pipeline tells of itself."""
        self._socket, self._client, self._info = socket, client, info
        self._session = Session.new(client.pipeline, info)
        self._conversation = Conversation()
        self._hearing = Hearing(self._session.audio.input)
        self._response: Response | None = None
        self._answering: asyncio.Task[None] | None = None
        self._answer_due = False

    async def run(self) -> None:
        """Until the client leaves, which aborts the running response."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._send(events.SessionCreated(session=self._session.shown()))
                while (message := await self._socket.receive())["type"] == "websocket.receive":
                    await self._receive(message.get("text"))
                if self._answering is not None:
                    self._answering.cancel()
        except* WebSocketDisconnect:
            pass

    async def _receive(self, text: str | None) -> None:
        """One message; None for a binary one."""
        try:
            event = asked.parse(text)
        except asked.BadEvent as bad:
            await self._send(events.error_event(bad.error, bad.event_id))
            return
        try:
            await self._handle(event)
        except ApiError as error:
            await self._send(events.error_event(error, event.event_id))

    async def _handle(self, event: asked.ClientEvent) -> None:
        match event:
            case asked.SessionUpdate(session=change):
                session = self._session.changed(change, self._info)
                self._hearing.configure(session.audio.input)
                self._session = session
                await self._send(events.SessionUpdated(session=session.shown()))
            case asked.AudioAppend(audio=audio):
                for turn in await self._hearing.append(audio):
                    await self._on_turn(turn)
            case asked.AudioCommit():
                await self._commit(*self._hearing.commit())
            case asked.AudioClear():
                self._hearing.clear()
                await self._send(events.AudioCleared())
            case asked.ItemCreate(item=item, previous_item_id=after):
                await self._tell_of(self._conversation.add(item, self._hearing.rate, after))
            case asked.ItemRetrieve(item_id=item_id):
                item = self._conversation.get(item_id).item
                await self._send(events.ItemRetrieved(item=item.shown(audio=True)))
            case asked.ItemDelete(item_id=item_id):
                self._conversation.remove(item_id)
                await self._send(events.ItemDeleted(item_id=item_id))
            case asked.ItemTruncate(item_id=item_id, audio_end_ms=end):
                self._conversation.truncate(item_id, end)
                await self._send(events.ItemTruncated(item_id=item_id, content_index=0, audio_end_ms=end))
            case asked.ResponseCreate(response=request, event_id=event_id):
                if self._response is not None:
                    reason = f"The response {self._response.id} is still running; cancel it first"
                    raise ApiError(400, f"{reason}.", "conversation_already_has_active_response")
                self._answer(self._plan(request, event_id))
            case asked.ResponseCancel(response_id=response_id):
                if self._response is None or response_id not in (None, self._response.id):
                    raise ApiError(
                        400, "There is no such running response.", "response_cancel_not_active", "response_id"
                    )
                await self._interrupt("client_cancelled")

    async def _on_turn(self, turn: TurnBegun | TurnEnded) -> None:
        settings = self._session.audio.input.turn_detection or ServerVad()
        match turn:
            case TurnBegun(item_id, start_ms):
                response = self._response
                if settings.interrupt_response and response is not None and response.in_conversation:
                    await self._interrupt("turn_detected")
                await self._send(events.SpeechStarted(item_id=item_id, audio_start_ms=start_ms))
            case TurnEnded(item_id, end_ms, audio):
                await self._send(events.SpeechStopped(item_id=item_id, audio_end_ms=end_ms))
                await self._commit(item_id, audio)
                if settings.create_response:
                    self._answer_turn()

    async def _commit(self, item_id: str, audio: bytes) -> None:
        entry = self._conversation.add(UserItem(id=item_id, content=[InputAudio(audio=audio)]), self._hearing.rate)
        before = self._conversation.before(item_id)
        await self._send(events.AudioCommitted(item_id=item_id, previous_item_id=before))
        await self._tell_of(entry)

    async def _tell_of(self, entry: Entry) -> None:
        before, item = self._conversation.before(entry.id), entry.item.shown()
        await self._send(events.ItemAdded(previous_item_id=before, item=item))
        await self._send(events.ItemDone(previous_item_id=before, item=item))

    def _plan(self, request: asked.ResponseRequest, event_id: str | None = None) -> Plan:
        """Raises `ApiError`."""
        session = self._session.for_response(request, self._info)
        conversation = self._conversation if request.conversation == "auto" else None
        if conversation is not None:
            conversation.check_room()
        context: Iterable[Entry] = self._conversation
        if request.input is not None:
            context = [self._input(item) for item in request.input]
        return Plan(messages(context, session.instructions), session, conversation, request.metadata, event_id)

    def _input(self, item: InputItem) -> Entry:
        if isinstance(item, ItemReference):
            return self._conversation.get(item.id)
        return Entry(item, self._hearing.rate)

    def _answer_turn(self) -> None:
        """Now, or when the running response has ended. Raises `ApiError`."""
        self._answer_due = self._response is not None
        if not self._answer_due:
            self._answer(self._plan(asked.ResponseRequest()))

    def _answer(self, plan: Plan) -> None:
        self._response = Response(plan, self._client, self._send)
        self._answering = self._tasks.create_task(self._run(self._response))

    async def _run(self, response: Response) -> None:
        await response.run()
        self._response = None
        if self._answer_due:
            try:
                self._answer_turn()
            except ApiError as error:
                await self._send(events.error_event(error, None))

    async def _interrupt(self, reason: CancelReason) -> None:
        """Abort the running response, and wait until its last event is sent."""
        if self._response is not None and self._answering is not None:
            self._response.cancel(reason)
            await asyncio.wait([self._answering])

    async def _send(self, event: events.ServerEvent) -> None:
        """Raises `WebSocketDisconnect` where the client is gone."""
        try:
            async with asyncio.timeout(SEND_S):
                await self._socket.send_text(events.encoded(event))
        except TimeoutError:
            raise WebSocketDisconnect(1011, "the client takes no more events") from None
