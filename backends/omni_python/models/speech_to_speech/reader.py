"""The text stage: words as they come to sentences in phonemes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from omni_python.models.speech_to_speech.hearing import SPOKEN
from omni_python.models.speech_to_speech.payloads import Heard, Reading, Sentence, Words
from omni_python.models.speech_to_speech.sentences import SentenceSplitter
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.torch_loop import TorchLoopScheduler


@dataclass
class _Text:
    splitter: SentenceSplitter
    received: int = 0
    sentences: int = 0
    last: Words | None = None
    end: Heard | None = None


class ReaderScheduler(TorchLoopScheduler):
    """Words -> Sentence, streamed to the synthesis, and Reading. Words and their end may come in any order."""

    def __init__(
        self, pronounce: Callable[[str], str], make_splitter: Callable[[], SentenceSplitter] = SentenceSplitter
    ) -> None:
        """`pronounce` makes phonemes of a sentence."""
        super().__init__("reader")
        self._pronounce = pronounce
        self._make_splitter = make_splitter
        self._texts: dict[str, _Text] = {}

    def stats(self) -> Mapping[str, int]:
        return {"running": len(self._texts)}

    def drop(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def take(self, message: IncomingMessage) -> None:
        if message.type == "stream_done":
            return  # the end itself says how many words there are
        request_id, data = message.request_id, message.data
        if (text := self._texts.get(request_id)) is None:
            text = self._texts[request_id] = _Text(self._make_splitter())
        if isinstance(data, Words):
            if data.language != SPOKEN:
                raise InvalidArgument(
                    f"what was said is {data.language!r}, and only English can be spoken: ask for the task "
                    '"translate", or for modalities ["text"] alone'
                )
            text.received += 1
            text.last = data
            self._put(request_id, text, text.splitter.push(data.text))
        elif isinstance(data, Heard):
            text.end = data
        else:
            raise OmniError(f"{type(data).__name__} is no input of the reader stage")
        if (end := text.end) is not None and text.received == end.num_words:
            self._put(request_id, text, text.splitter.finish())
            self.drop(request_id)
            result = Reading(text.sentences, end.finish_reason, end.stream)
            self.outbox.put(OutgoingMessage(request_id, "result", result))

    def _put(self, request_id: str, text: _Text, sentences: list[str]) -> None:
        for sentence in sentences:
            if text.last is None or not (phonemes := self._pronounce(sentence)):
                continue
            text.sentences += 1
            spoken = Sentence(phonemes, text.last.voice, text.last.speed, text.last.stream)
            self.outbox.put(OutgoingMessage(request_id, "stream", spoken, "synthesis"))
