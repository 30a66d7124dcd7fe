"""One response: a request to the pipeline, and the events that tell of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from omni_python import client as omni
from omni_python.serve.openai.chat import usage
from omni_python.serve.openai.errors import api_error
from omni_python.serve.openai.realtime import server_events as events
from omni_python.serve.openai.realtime.conversation import Conversation
from omni_python.serve.openai.realtime.output import Output, Send
from omni_python.serve.openai.realtime.session import Session, new_id

CancelReason = Literal["client_cancelled", "turn_detected"]


@dataclass(frozen=True)
class Plan:
    """What to answer (in the pipeline's form) and how; `conversation` is None where the answer is to stay out of it.
    `event_id` is what the client called the event that asked."""

    messages: Sequence[Mapping[str, Any]]
    session: Session
    conversation: Conversation | None
    metadata: dict[str, str] | None = None
    event_id: str | None = None


class Response:
    """Runs once."""

    def __init__(self, plan: Plan, client: omni.AsyncOmniClient, send: Send) -> None:
        self.id = new_id("resp")
        self._plan, self._client, self._send = plan, client, send
        self._output = Output(self.id, plan.session, plan.conversation, send)
        self._cancelled: CancelReason | None = None
        self._scope: asyncio.Timeout | None = None
        self._usage: events.Json | None = None

    def cancel(self, reason: CancelReason) -> None:
        """Leave the pipeline's stream now, which aborts the request there; `run` then ends soon."""
        if self._cancelled is None:
            self._cancelled = reason
            if self._scope is not None:
                self._scope.reschedule(0)

    @property
    def in_conversation(self) -> bool:
        return self._plan.conversation is not None

    async def run(self) -> None:
        """Raises what `send` does, and leaves the request then, too."""
        await self._send(events.ResponseCreated(response=self._object("in_progress", None)))
        status = await self._answer()
        whole = status.type in ("completed", "incomplete")
        await self._output.end("completed" if status.type == "completed" else "incomplete", whole)
        await self._send(events.ResponseDone(response=self._object(status.type, status)))

    async def _answer(self) -> events.StatusDetails:
        try:
            return await self._until_cancelled()
        except TimeoutError:
            if self._cancelled is None:
                raise
            return events.StatusDetails("cancelled", reason=self._cancelled)
        except omni.OmniClientError as error:
            told = events.error_event(api_error(error), self._plan.event_id)
            await self._send(told)
            failure = events.ResponseError(told.error.type, told.error.code, told.error.message)
            return events.StatusDetails("failed", error=failure)

    async def _until_cancelled(self) -> events.StatusDetails:
        """Raises TimeoutError once it is."""
        try:
            # A time limit that `cancel` moves to the past: unlike a task's cancellation it cannot be mistaken for the
            # end of the connection, and works before the task's first step.
            async with asyncio.timeout(0 if self._cancelled else None) as self._scope:
                return await self._stream()
        finally:
            self._scope = None

    async def _stream(self) -> events.StatusDetails:
        session = self._plan.session
        stream = self._client.stream(
            messages=self._plan.messages,
            modalities=["text", "audio"] if session.speaks else ["text"],
            voice=session.audio.output.voice,
            sampling=session.sampling,
        )
        reason = ""
        async with aclosing(stream) as answer:
            async for event in answer:
                match event:
                    case omni.TextDelta(text):
                        await self._output.write(text)
                    case omni.AudioChunk(samples, sample_rate):
                        await self._output.speak(samples, sample_rate)
                    case omni.Finished() as finished:
                        reason, self._usage = finished.finish_reason, _usage(finished)
        if reason == "length":
            return events.StatusDetails("incomplete", reason="max_output_tokens")
        return events.StatusDetails("completed")

    def _object(self, status: str, details: events.StatusDetails | None) -> events.ResponseObject:
        session, conversation = self._plan.session, self._plan.conversation
        return events.ResponseObject(
            id=self.id,
            status=status,
            status_details=details,
            output=self._output.shown(),
            conversation_id=conversation.id if conversation is not None else None,
            output_modalities=list(session.output_modalities),
            max_output_tokens=session.max_output_tokens,
            audio={"output": session.audio.output.model_dump(mode="json", exclude={"speed"})},
            metadata=self._plan.metadata,
            usage=self._usage,
        )


def _usage(finished: omni.Finished) -> events.Json:
    used = usage(finished)
    return {
        "input_tokens": used["prompt_tokens"],
        "output_tokens": used["completion_tokens"],
        "total_tokens": used["total_tokens"],
        "output_token_details": used["completion_tokens_details"],
    }
