"""The stage that speaks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from omni_python.models.speech_to_speech.info import SAMPLE_RATE
from omni_python.models.speech_to_speech.kokoro import Kokoro
from omni_python.models.speech_to_speech.payloads import Reading, Sentence
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import AudioOutput
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.torch_loop import TorchLoopScheduler

SAMPLES_PER_FRAME = 600
"""Of Kokoro's decoder; what the usage counts."""


@dataclass
class _Speech:
    waiting: deque[Sentence] = field(default_factory=deque)
    spoken: int = 0
    samples: int = 0
    held: list[np.ndarray] = field(default_factory=list)
    end: Reading | None = None


class SynthesisScheduler(TorchLoopScheduler):
    """Sentence -> speech, a chunk each, or all of it at once where the client wants no stream. Requests take turns."""

    def __init__(self, kokoro: Kokoro) -> None:
        super().__init__("synthesis")
        self._kokoro = kokoro
        self._speeches: dict[str, _Speech] = {}

    def stats(self) -> Mapping[str, int]:
        return {"running": len(self._speeches)}

    def drop(self, request_id: str) -> None:
        self._speeches.pop(request_id, None)

    def take(self, message: IncomingMessage) -> None:
        if message.type == "stream_done":
            return  # the end itself says how many sentences there are
        speech = self._speeches.setdefault(message.request_id, _Speech())
        if isinstance(message.data, Sentence):
            speech.waiting.append(message.data)
        elif isinstance(message.data, Reading):
            speech.end = message.data
            self._finish_if_complete(message.request_id, speech)
        else:
            raise OmniError(f"{type(message.data).__name__} is no input of the synthesis stage")

    def work(self) -> bool:
        # One sentence at a time: messages, and so aborts, are looked at between them.
        ready = next((request_id for request_id, speech in self._speeches.items() if speech.waiting), None)
        if ready is None:
            return False
        speech = self._speeches.pop(ready)
        self._speeches[ready] = speech  # behind the others
        try:
            self._speak(ready, speech, speech.waiting.popleft())
        except Exception as error:
            self.fail(ready, error)
        return True

    def _speak(self, request_id: str, speech: _Speech, sentence: Sentence) -> None:
        self.on_began(request_id)
        start = time.monotonic() if self.traces else 0.0
        samples = self._kokoro.speak(sentence.phonemes, sentence.voice, sentence.speed)
        if start:
            self.note_step([request_id], start)
        speech.spoken += 1
        speech.samples += len(samples)
        if sentence.stream:
            self.outbox.put(OutgoingMessage(request_id, "stream", AudioOutput(samples, SAMPLE_RATE)))
        else:
            speech.held.append(samples)
        self._finish_if_complete(request_id, speech)

    def _finish_if_complete(self, request_id: str, speech: _Speech) -> None:
        if (end := speech.end) is None or speech.spoken < end.num_sentences:
            return
        self.drop(request_id)
        samples = np.concatenate([*speech.held, np.zeros(0, np.float32)])
        output = AudioOutput(samples, SAMPLE_RATE, end.finish_reason, speech.samples // SAMPLES_PER_FRAME)
        self.outbox.put(OutgoingMessage(request_id, "result", output))
