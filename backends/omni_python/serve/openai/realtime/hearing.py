"""The input audio buffer of a session, and the turns that are found in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from omni_python.serve.openai.errors import ApiError
from omni_python.serve.openai.realtime.audio import BYTES, samples_of
from omni_python.serve.openai.realtime.session import AudioInput, ServerVad, new_id
from omni_python.serve.openai.realtime.turns import Edge, TurnDetector

MAX_SECONDS = 300
"""Of sound in the buffer. Longer speech is taken for a turn; where the client commits, more is refused."""
UNHEARD_MS = 100
"""More than the newest samples that the detector has not looked at yet: less than a window, and its resampler's."""
MIN_MS = 100
"""Of sound that can be committed, as OpenAI has it."""


@dataclass(frozen=True)
class TurnBegun:
    """Times are milliseconds from the session's first sample; `item_id` is that of the item which the turn will be."""

    item_id: str
    start_ms: int


@dataclass(frozen=True)
class TurnEnded:
    item_id: str
    end_ms: int
    audio: bytes


class Hearing:
    """Samples are numbered from the session's first one; the buffer holds those from `_start` on."""

    def __init__(self, settings: AudioInput) -> None:
        self.rate = settings.format.rate
        self._buffer = bytearray()
        self._start = 0
        self._item_id = new_id("item")
        self._vad: ServerVad | None = None
        self._detector: TurnDetector | None = None
        self.configure(settings)

    def configure(self, settings: AudioInput) -> None:
        """Raises `ApiError` for another rate while there are samples of the old one."""
        if settings.format.rate != self.rate:
            if self._buffer:
                reason = "The input rate cannot change while the input audio buffer holds sound; commit or clear it"
                raise ApiError(400, f"{reason}.", "invalid_value", "session.audio.input.format.rate")
            self._start = self._start * settings.format.rate // self.rate
            self.rate, self._vad = settings.format.rate, None
        if settings.turn_detection != self._vad:
            self._vad = settings.turn_detection
            self._listen_anew()

    async def append(self, audio: bytes) -> list[TurnBegun | TurnEnded]:
        """The next samples, int16. Raises `ApiError` where they do not fit."""
        turns: list[TurnBegun | TurnEnded] = []
        speaking = self._detector is not None and self._detector.speaking
        if speaking and len(audio) <= self._most < len(self._buffer) + len(audio):
            turns.append(self._end_turn(self._end))
            self._listen_anew()
        if len(self._buffer) + len(audio) > self._most:
            reason = f"The input audio buffer holds at most {MAX_SECONDS} s"
            raise ApiError(400, f"{reason}; commit or clear it.", "input_audio_buffer_full", "audio")
        self._buffer += audio
        if self._detector is not None:
            # A thread, since a large event takes a second of computing.
            edges = await asyncio.to_thread(self._detector.feed, samples_of(audio))
            turns += [self._begin_turn(edge) if edge.speaking else self._end_turn(edge.sample) for edge in edges]
            if not self._detector.speaking:
                self._forget_before(self._end - self._padding - self.rate * UNHEARD_MS // 1000)
        return turns

    def commit(self) -> tuple[str, bytes]:
        """The item's id and the whole buffer, which is then empty. Raises `ApiError` where that is too little."""
        held = len(self._buffer) // BYTES * 1000 // self.rate
        if held < MIN_MS:
            reason = f"The input audio buffer holds {held} ms of sound; at least {MIN_MS} ms can be committed"
            raise ApiError(400, f"{reason}.", "input_audio_buffer_commit_empty")
        turn = self._end_turn(self._end)
        self._listen_anew()
        return turn.item_id, turn.audio

    def clear(self) -> None:
        self._forget_before(self._end)
        self._listen_anew()

    @property
    def _padding(self) -> int:
        """Samples before a turn that belong to it."""
        return self._vad.prefix_padding_ms * self.rate // 1000 if self._vad is not None else 0

    @property
    def _end(self) -> int:
        return self._start + len(self._buffer) // BYTES

    @property
    def _most(self) -> int:
        """Bytes that the buffer may hold."""
        return MAX_SECONDS * self.rate * BYTES

    def _listen_anew(self) -> None:
        self._detector = TurnDetector(self._vad, self.rate, self._end) if self._vad is not None else None

    def _begin_turn(self, edge: Edge) -> TurnBegun:
        self._forget_before(edge.sample - self._padding)
        return TurnBegun(self._item_id, self._milliseconds(self._start))

    def _end_turn(self, end: int) -> TurnEnded:
        audio = bytes(self._buffer[: (end - self._start) * BYTES])
        self._forget_before(end)
        item_id, self._item_id = self._item_id, new_id("item")
        return TurnEnded(item_id, self._milliseconds(end), audio)

    def _forget_before(self, sample: int) -> None:
        gone = max(sample - self._start, 0)
        del self._buffer[: gone * BYTES]
        self._start += gone

    def _milliseconds(self, sample: int) -> int:
        return sample * 1000 // self.rate
