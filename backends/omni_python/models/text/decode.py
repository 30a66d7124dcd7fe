"""The stage that turns the thinker's tokens into text for the client."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_python.models.text.answers import AnswerScheduler
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.models.text.payloads import DecodeStart, ThinkerResult
from omni_python.proto.payload import TextOutput
from omni_python.proto.work import OutgoingMessage


@dataclass
class _Text:
    start: DecodeStart
    kept: list[str] = field(default_factory=list)


class DecodeScheduler(AnswerScheduler[_Text]):
    """Streams text deltas (`TextOutput`), or gives all text at once, as the request's `DecodeStart` says."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        super().__init__(token_bytes, "decode")

    def begin(self, request_id: str, start: DecodeStart) -> _Text:
        state = _Text(start)
        if start.echo_text:
            self.extend(request_id, state, start.echo_text)
        return state

    def extend(self, request_id: str, state: _Text, text: str) -> None:
        if state.start.stream:
            self.outbox.put(OutgoingMessage(request_id, "stream", TextOutput(text)))
        else:
            state.kept.append(text)

    def finish(self, request_id: str, state: _Text, end: ThinkerResult) -> None:
        text = "".join(state.kept)
        output = TextOutput(text, end.finish_reason, state.start.num_input_tokens, len(end.output_ids))
        self.outbox.put(OutgoingMessage(request_id, "result", output))
