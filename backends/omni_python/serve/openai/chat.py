"""`POST /v1/chat/completions`: one choice that holds both the text and the speech."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

import msgspec

from omni_python.client import AsyncOmniClient, AudioChunk, Event, Finished, RequestOptions, TextDelta
from omni_python.serve.openai.conversation import SpokenAnswers, pipeline_messages
from omni_python.serve.openai.encoding import SpeechEncoder, encoded
from omni_python.serve.openai.schema import ChatRequest

_USAGE = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}


class ChatCompletion:
    """One request's answer, whole or in chunks, as JSON objects."""

    def __init__(
        self, request: ChatRequest, client: AsyncOmniClient, spoken: SpokenAnswers, traceparent: str | None = None
    ) -> None:
        """Raises `ApiError` for what the conversation refers to and is not there."""
        self._request, self._client, self._spoken = request, client, spoken
        self._traceparent = traceparent
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._audio_id = spoken.new_id()
        self._created = int(time.time())
        self._options = self._pipeline_options()
        self._encoder: SpeechEncoder | None = None  # of streamed speech
        self._said: list[str] = []

    async def whole(self) -> dict[str, Any]:
        answer = await self._client.chat(**self._options)
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if self._request.speaks:
            data = encoded(self._format, answer.audio, answer.sample_rate) if len(answer.audio) else b""
            message["audio"] = {
                "id": self._audio_id,
                "data": base64.b64encode(data).decode(),
                "transcript": answer.text,
                "expires_at": self._spoken.keep(self._audio_id, answer.text),
            }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finished.finish_reason}
        extra = {"usage": usage(answer.finished), **timings(answer.finished)}
        return self._object("chat.completion", [choice], extra)

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The first chunk comes with the answer's first piece, so that a refused request can still get its status."""
        role: dict[str, Any] = {"role": "assistant"}
        async with aclosing(self._client.stream(**self._options)) as events:
            async for event in events:
                for delta in self._deltas(event):
                    yield self._chunk({**role, **delta})
                    role = {}
                if isinstance(event, Finished):
                    end = self._chunk({**role, **self._audio_end()}, event.finish_reason)
                    yield {**end, **timings(event)}
                    if self._request.stream_options and self._request.stream_options.include_usage:
                        yield self._object("chat.completion.chunk", [], {"usage": usage(event)})

    def _deltas(self, event: Event) -> Iterator[dict[str, Any]]:
        """What of an event is text or speech."""
        match event:
            case TextDelta(text):
                self._said.append(text)
                yield {"content": text, **self._audio(transcript=text)}
            case AudioChunk(samples, sample_rate):
                self._encoder = self._encoder or SpeechEncoder(self._format, sample_rate)
                if data := self._encoder.encode(samples):
                    yield self._audio(data=base64.b64encode(data).decode())
            case Finished():
                if self._encoder is not None and (data := self._encoder.close()):
                    yield self._audio(data=base64.b64encode(data).decode())

    def _audio_end(self) -> dict[str, Any]:
        if not self._request.speaks:
            return {}
        return self._audio(expires_at=self._spoken.keep(self._audio_id, "".join(self._said)))

    @property
    def _format(self) -> str:
        return self._request.audio.format if self._request.audio else "wav"

    def _pipeline_options(self) -> RequestOptions:
        audio = self._request.audio
        return {
            "messages": pipeline_messages(self._request.messages, self._spoken),
            "modalities": ["text", "audio"] if self._request.speaks else ["text"],
            "voice": audio.voice if audio else None,
            "sampling": self._request.sampling,
            "traceparent": self._traceparent,
        }

    def _audio(self, **fields: Any) -> dict[str, Any]:
        return {"audio": {"id": self._audio_id, **fields}} if self._request.speaks else {}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(
        self, kind: str, choices: list[dict[str, Any]], extra: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "choices": choices,
            **extra,
        }


def usage(finished: Finished) -> dict[str, Any]:
    """Token counts in OpenAI's names; `audio_tokens` are the codec frames of the speech."""
    counts = {name: int(finished.usage.get(key, 0)) for name, key in _USAGE.items()}
    frames = int(finished.usage.get("audio_frames", 0))
    counts["completion_tokens"] += frames
    return {
        **counts,
        "total_tokens": sum(counts.values()),
        "completion_tokens_details": {"text_tokens": counts["completion_tokens"] - frames, "audio_tokens": frames},
    }


def timings(finished: Finished) -> dict[str, Any]:
    """The extension field `omni_timings`: the schema's `StageTime` of each stage, in the order of their starts."""
    return {"omni_timings": [msgspec.structs.asdict(stage) for stage in finished.stages]}
