"""The recogniser's stage."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from omni_python.models.speech_to_speech.mel import SAMPLES_PER_POSITION
from omni_python.models.speech_to_speech.payloads import Heard, Utterance, Words
from omni_python.models.speech_to_speech.recogniser import Piece, Recogniser
from omni_python.proto.errors import OmniError
from omni_python.proto.request import AudioPart, TextPart
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.torch_loop import TorchLoopScheduler

SPOKEN = "en"
"""The language of the speech that the pipeline makes, and so of texts that it is given."""


class HearingScheduler(TorchLoopScheduler):
    """Utterance -> Words, streamed to the transcript and, where they are to be spoken, to the reader, and Heard.
    Requests take turns, a token each."""

    def __init__(self, recogniser: Recogniser) -> None:
        super().__init__("recogniser")
        self._recogniser = recogniser
        self._heard: dict[str, Iterator[Words | Heard]] = {}

    def stats(self) -> Mapping[str, int]:
        return {"running": len(self._heard)}

    def drop(self, request_id: str) -> None:
        self._heard.pop(request_id, None)

    def take(self, message: IncomingMessage) -> None:
        if not isinstance(message.data, Utterance):
            raise OmniError(f"{type(message.data).__name__} is no input of the recogniser stage")
        self._heard[message.request_id] = self._hear(_copied(message.data))

    def work(self) -> bool:
        for request_id, heard in list(self._heard.items()):
            self.on_began(request_id)
            start = time.monotonic() if self.traces else 0.0
            try:
                output = next(heard)
            except Exception as error:
                self.fail(request_id, error)
                continue
            if start:
                self.note_step([request_id], start)
            self._put(request_id, output)
        return bool(self._heard)

    def _put(self, request_id: str, output: Words | Heard) -> None:
        if isinstance(output, Heard):
            self.drop(request_id)
            self.outbox.put(OutgoingMessage(request_id, "result", output))
            return
        for target in ("transcript", "reader") if output.speech else ("transcript",):
            self.outbox.put(OutgoingMessage(request_id, "stream", output, target))

    def _hear(self, asked: Utterance) -> Iterator[Words | Heard]:
        words, room = 0, asked.max_tokens
        for piece in self._pieces(asked):
            room -= piece.tokens
            words += 1
            yield Words(piece.text, piece.language, asked.voice, asked.speed, asked.speech, asked.stream)
        samples = sum(
            len(part.samples) for part in asked.parts if isinstance(part, AudioPart) and part.samples is not None
        )
        yield Heard(
            words,
            -(-samples // SAMPLES_PER_POSITION),
            asked.max_tokens - room,
            "stop" if room > 0 else "length",
            asked.speech,
            asked.stream,
        )

    def _pieces(self, asked: Utterance) -> Iterator[Piece]:
        """The first begins with no space, those of later parts do."""
        room, begun = asked.max_tokens, False
        for part in asked.parts:
            if isinstance(part, TextPart):
                pieces: Iterator[Piece] = iter([Piece(f" {part.text.strip()}", SPOKEN, 0)])
            else:
                assert part.samples is not None, "preprocessing decodes"
                pieces = self._recogniser.hear(part.samples, asked.task, asked.language, room)
            for piece in pieces:
                room -= piece.tokens
                text = piece.text if begun else piece.text.lstrip()
                begun |= bool(text)
                yield Piece(text, piece.language, piece.tokens)


def _copied(asked: Utterance) -> Utterance:
    """Sounds may lie in memory that is to be given back before they are heard to their end."""
    parts: list[TextPart | AudioPart] = [
        AudioPart(samples=np.array(part.samples), sample_rate=part.sample_rate) if isinstance(part, AudioPart) else part
        for part in asked.parts
    ]
    return msgspec.structs.replace(asked, parts=parts)
