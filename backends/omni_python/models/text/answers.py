"""The thinker's tokens as text, for stages that do something with it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from omni_python.models.text.detokenizer import Detokenizer, StopStrings, TokenBytes
from omni_python.models.text.payloads import AnswerToken, DecodeStart, ThinkerResult
from omni_python.proto.errors import OmniError
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.loop import LoopScheduler

S = TypeVar("S")


@dataclass
class _Answer(Generic[S]):
    """`state` is what the stage itself keeps of the answer, once it has begun."""

    start: DecodeStart | None = None
    detokenizer: Detokenizer | None = None
    stop: StopStrings = field(default_factory=lambda: StopStrings([]))
    num_tokens: int = 0
    state: S | None = None
    end: ThinkerResult | None = None


class AnswerScheduler(LoopScheduler, Generic[S]):
    """Reads an answer that begins with a `DecodeStart`, goes on with `AnswerToken`s and is over with a `ThinkerResult`.

    That one holds every token: tokens that were not streamed in time are taken from it. A stop string and what follows
    it are cut off; text that may begin one is held back.
    """

    def __init__(self, token_bytes: TokenBytes, name: str) -> None:
        super().__init__(name)
        self._token_bytes = token_bytes
        self._answers: dict[str, _Answer[S]] = {}

    @abc.abstractmethod
    def begin(self, request_id: str, start: DecodeStart) -> S:
        """The state of an answer that begins."""

    @abc.abstractmethod
    def extend(self, request_id: str, state: S, text: str) -> None:
        """More text of the answer; never empty."""

    @abc.abstractmethod
    def finish(self, request_id: str, state: S, end: ThinkerResult) -> None:
        """The answer is over; to put the stage's result into the outbox."""

    def stats(self) -> Mapping[str, int]:
        return {"running": len(self._answers)}

    def drop(self, request_id: str) -> None:
        self._answers.pop(request_id, None)

    def take(self, message: IncomingMessage) -> None:
        data, request_id = message.data, message.request_id
        if isinstance(data, AnswerToken):
            answer = self._answers.get(request_id)
            if answer is None or answer.state is None:
                return  # it is over, by the result
            self._extend(request_id, answer.state, self._add(answer, [data.token_id]))
        elif isinstance(data, DecodeStart):
            answer = self._answers.setdefault(request_id, _Answer())
            answer.start = data
            answer.detokenizer = Detokenizer(self._token_bytes)
            answer.stop = StopStrings(data.stop)
            answer.state = self.begin(request_id, data)
        elif isinstance(data, ThinkerResult):
            answer = self._answers.setdefault(request_id, _Answer())
            answer.end = data
        elif message.type != "stream_done":
            raise OmniError(f"{type(data).__name__} is no input of a stage that reads an answer")
        else:
            return
        if answer.state is not None and answer.end is not None:
            self._finish(request_id, answer, answer.state, answer.end)

    def _add(self, answer: _Answer[S], token_ids: list[int]) -> str:
        assert answer.detokenizer is not None, "made with the start"
        answer.num_tokens += len(token_ids)
        return "".join(answer.stop.push(answer.detokenizer.push(token)) for token in token_ids)

    def _extend(self, request_id: str, state: S, text: str) -> None:
        if text:
            self.extend(request_id, state, text)

    def _finish(self, request_id: str, answer: _Answer[S], state: S, end: ThinkerResult) -> None:
        assert answer.detokenizer is not None, "made with the start"
        rest = self._add(answer, end.output_ids[answer.num_tokens :])
        rest += answer.stop.push(answer.detokenizer.finish())
        rest += answer.stop.finish()
        self._extend(request_id, state, rest)
        self.drop(request_id)
        self.finish(request_id, state, end)
