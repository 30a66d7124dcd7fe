"""From the API's messages to the pipeline's, and the transcripts of earlier speech by its id."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omni_python.serve.openai.errors import ApiError
from omni_python.serve.openai.schema import AssistantMessage, Message, Part, TextPart

_KEPT = 10_000
_KEPT_S = 3600


@dataclass(frozen=True)
class _Speech:
    transcript: str
    expires_at: int


class SpokenAnswers:
    """Remembers what was said under each audio id, for the conversation's next turns: the newest `_KEPT` answers, each
    for an hour."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, _Speech] = OrderedDict()
        self._lock = threading.Lock()

    def new_id(self) -> str:
        return f"audio_{secrets.token_hex(16)}"

    def keep(self, audio_id: str, transcript: str) -> int:
        """Remember an answer; the Unix time at which it is forgotten."""
        expires_at = int(time.time()) + _KEPT_S
        with self._lock:
            self._answers[audio_id] = _Speech(transcript, expires_at)
            while len(self._answers) > _KEPT:
                self._answers.popitem(last=False)
        return expires_at

    def transcript(self, audio_id: str) -> str | None:
        with self._lock:
            speech = self._answers.get(audio_id)
        return speech.transcript if speech is not None and speech.expires_at > time.time() else None


def pipeline_messages(messages: Sequence[Message], spoken: SpokenAnswers) -> list[Mapping[str, Any]]:
    """The conversation in the pipeline's form. Raises `ApiError` for an audio id that is not known (any more)."""
    return [_message(message, f"messages.{index}", spoken) for index, message in enumerate(messages)]


def _message(message: Message, where: str, spoken: SpokenAnswers) -> Mapping[str, Any]:
    if isinstance(message, AssistantMessage) and message.content is None:
        assert message.audio is not None  # the schema refuses a message with neither
        transcript = spoken.transcript(message.audio.id)
        if transcript is None:
            known = "not known to this server, or expired; give the message's text as its content"
            raise ApiError(404, f"The audio {message.audio.id!r} is {known}.", "audio_not_found", f"{where}.audio.id")
        return {"role": "assistant", "content": transcript}
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": _content(message.content)}


def _content(content: str | Sequence[Part] | Sequence[TextPart] | None) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    return [part.model_dump(exclude_none=True) for part in content]
