"""The stage that gives what was heard to the client, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omni_python.models.speech_to_speech.payloads import Heard, Words
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import TextOutput
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.loop import LoopScheduler


@dataclass
class _Text:
    received: int = 0
    held: list[str] = field(default_factory=list)
    end: Heard | None = None


class TranscriptScheduler(LoopScheduler):
    """Words -> text deltas, or all text at once where the client wants no stream. Words and their end may come in any
    order."""

    def __init__(self) -> None:
        super().__init__("transcript")
        self._texts: dict[str, _Text] = {}

    def stats(self) -> Mapping[str, int]:
        return {"running": len(self._texts)}

    def drop(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def take(self, message: IncomingMessage) -> None:
        if message.type == "stream_done":
            return  # the end itself says how many words there are
        request_id, data = message.request_id, message.data
        text = self._texts.setdefault(request_id, _Text())
        if isinstance(data, Words):
            text.received += 1
            if data.stream:
                self.outbox.put(OutgoingMessage(request_id, "stream", TextOutput(data.text)))
            else:
                text.held.append(data.text)
        elif isinstance(data, Heard):
            text.end = data
        else:
            raise OmniError(f"{type(data).__name__} is no input of the transcript stage")
        if (end := text.end) is not None and text.received == end.num_words:
            self.drop(request_id)
            output = TextOutput("".join(text.held), end.finish_reason, end.num_input_tokens, end.num_output_tokens)
            self.outbox.put(OutgoingMessage(request_id, "result", output))
