"""The stage that turns the thinker's tokens into text for the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omni_python.models.text.detokenizer import Detokenizer, StopStrings, TokenBytes
from omni_python.models.text.payloads import AnswerToken, DecodeStart, ThinkerResult
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import TextOutput
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.loop import LoopScheduler


@dataclass
class _Answer:
    start: DecodeStart | None = None
    detokenizer: Detokenizer | None = None
    stop: StopStrings = field(default_factory=lambda: StopStrings([]))
    num_tokens: int = 0
    text: list[str] = field(default_factory=list)
    end: ThinkerResult | None = None


class DecodeScheduler(LoopScheduler):
    """Streams text deltas (`TextOutput`), or gives all text at once, as the request's `DecodeStart` says.

    The answer is over with the `ThinkerResult`, which holds every token: tokens that were not streamed in time are
    taken from it. A stop string and what follows it are cut off; text that may begin one is held back.
    """

    def __init__(self, token_bytes: TokenBytes, name: str = "decode") -> None:
        super().__init__(name)
        self._token_bytes = token_bytes
        self._answers: dict[str, _Answer] = {}

    def stats(self) -> Mapping[str, int]:
        return {"running": len(self._answers)}

    def drop(self, request_id: str) -> None:
        self._answers.pop(request_id, None)

    def take(self, message: IncomingMessage) -> None:
        data, request_id = message.data, message.request_id
        if isinstance(data, AnswerToken):
            answer = self._answers.get(request_id)
            if answer is not None and answer.start is not None:  # else it is over, by the result
                self._stream(request_id, answer, self._add(answer, [data.token_id]))
        elif isinstance(data, DecodeStart):
            answer = self._answers.setdefault(request_id, _Answer())
            answer.start = data
            answer.detokenizer = Detokenizer(self._token_bytes)
            answer.stop = StopStrings(data.stop)
            self._stream(request_id, answer, data.echo_text)
        elif isinstance(data, ThinkerResult):
            answer = self._answers.setdefault(request_id, _Answer())
            answer.end = data
        elif message.type != "stream_done":
            raise OmniError(f"{type(data).__name__} is no input of the decode stage")
        else:
            return
        if answer is not None and answer.start is not None and answer.end is not None:
            self._finish(request_id, answer, answer.start, answer.end)

    def _add(self, answer: _Answer, token_ids: list[int]) -> str:
        assert answer.detokenizer is not None, "made with the start"
        answer.num_tokens += len(token_ids)
        return "".join(answer.stop.push(answer.detokenizer.push(token)) for token in token_ids)

    def _stream(self, request_id: str, answer: _Answer, text: str) -> None:
        if not text:
            return
        if answer.start is not None and answer.start.stream:
            self.outbox.put(OutgoingMessage(request_id, "stream", TextOutput(text)))
        else:
            answer.text.append(text)

    def _finish(self, request_id: str, answer: _Answer, start: DecodeStart, end: ThinkerResult) -> None:
        assert answer.detokenizer is not None, "made with the start"
        rest = self._add(answer, end.output_ids[answer.num_tokens :])
        rest += answer.stop.push(answer.detokenizer.finish())
        rest += answer.stop.finish()
        self._stream(request_id, answer, rest)
        text = "".join(answer.text)
        output = TextOutput(text, end.finish_reason, start.num_input_tokens, len(end.output_ids))
        self.drop(request_id)
        self.outbox.put(OutgoingMessage(request_id, "result", output))
