"""What a request answers with, piece by piece or as a whole."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omni_python.client._display import paragraph, player, small
from omni_python.client._errors import ConnectionLost
from omni_python.proto.info import PipelineInfo, decode_info
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import Trace, decode_trace
from omni_python.proto.wav import wav_file


@dataclass(frozen=True)
class TextDelta:
    """The next piece of the answer's text."""

    text: str


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """The next piece of speech: read-only float32 samples [n] in -1..1 at `sample_rate` Hz."""

    samples: np.ndarray
    sample_rate: int

    def __repr__(self) -> str:
        return f"AudioChunk({len(self.samples) / self.sample_rate:.3f} s at {self.sample_rate} Hz)"

    def _repr_html_(self) -> str:
        """A player, for notebooks."""
        return player(self.samples, self.sample_rate)


@dataclass(frozen=True)
class Finished:
    """The end: why ("stop", "length", ...), token and sample counts, seconds since the request was sent, until the
    first text and the first audio (None where there was none) and the end; and when each stage worked, in seconds since
    the server admitted the request, in the order of their starts. `trace` tells more, where the request asked for it.
    """

    finish_reason: str
    usage: dict[str, Any]
    first_text: float | None
    first_audio: float | None
    total: float
    stages: tuple[StageTiming, ...] = ()
    trace: Trace | None = None


@dataclass(frozen=True)
class Recorded:
    """The first event of a stream whose `sampling` asks to `record` stages: the files, on the server's host, that are
    written when each stage is done with the request, also where it fails."""

    paths: tuple[str, ...]


Event = TextDelta | AudioChunk | Finished | Recorded


def described(outputs: Iterable[Mapping[str, np.ndarray]]) -> PipelineInfo:
    """The answer to a request for the pipeline's description. Raises `ConnectionLost` where there is none."""
    for output in outputs:
        if "description" in output:
            return decode_info(output["description"][0])
    raise ConnectionLost("the server stopped before it described the pipeline")


def told_trace(outputs: Iterable[Mapping[str, np.ndarray]]) -> Trace:
    """The answer to a request for a trace. Raises `ConnectionLost` where there is none."""
    for output in outputs:
        if "trace" in output:
            return decode_trace(output["trace"][0])
    raise ConnectionLost("the server stopped before it told the trace")


class EventReader:
    """Makes events of a request's responses, and measures; made when the request is sent."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._first_text: float | None = None
        self._first_audio: float | None = None
        self._finished: Finished | None = None

    def read(self, outputs: Mapping[str, np.ndarray]) -> list[TextDelta | AudioChunk | Recorded]:
        """The events of one response, given its outputs by name."""
        now = time.perf_counter() - self._start
        text, audio = outputs.get("text_output"), outputs.get("audio_output")
        events: list[TextDelta | AudioChunk | Recorded] = []
        if "recordings" in outputs:
            events.append(Recorded(tuple(json.loads(outputs["recordings"][0]))))
        if text is not None and text[0]:
            self._first_text = now if self._first_text is None else self._first_text
            events.append(TextDelta(text[0].decode()))
        if audio is not None and len(audio):
            self._first_audio = now if self._first_audio is None else self._first_audio
            events.append(AudioChunk(audio, int(outputs["audio_sample_rate"][0])))
        if "finish_reason" in outputs:
            reason, usage = outputs["finish_reason"][0].decode(), json.loads(outputs["usage"][0])
            stages = tuple(StageTiming(**stage) for stage in json.loads(outputs.get("stage_timings", [b"[]"])[0]))
            trace = decode_trace(outputs["trace"][0]) if "trace" in outputs else None
            self._finished = Finished(reason, usage, self._first_text, self._first_audio, now, stages, trace)
        return events

    def end(self, url: str) -> Finished:
        """The last event, after the last response. Raises `ConnectionLost` where the answer has no end."""
        if self._finished is None:
            raise ConnectionLost(f"{url} stopped in the middle of the answer")
        return self._finished


@dataclass(frozen=True, eq=False)
class Answer:
    """A whole answer. `audio` is float32 [n], empty where the pipeline did not speak; `sample_rate` is then 0."""

    text: str
    audio: np.ndarray
    sample_rate: int
    finished: Finished

    @classmethod
    def collect(cls, events: Iterable[Event]) -> Answer:
        """Gather the events of a stream. Raises ValueError if they end without `Finished`."""
        text: list[str] = []
        audio: list[np.ndarray] = [np.empty(0, np.float32)]
        sample_rate, finished = 0, None
        for event in events:
            match event:
                case TextDelta(piece):
                    text.append(piece)
                case AudioChunk(samples, sample_rate):
                    audio.append(samples)
                case Finished():
                    finished = event
        if finished is None:
            raise ValueError("the events end without Finished")
        return cls("".join(text), np.concatenate(audio), sample_rate, finished)

    @property
    def audio_seconds(self) -> float:
        """How long the speech is."""
        return len(self.audio) / self.sample_rate if self.sample_rate else 0.0

    @property
    def real_time_factor(self) -> float | None:
        """Seconds that the whole answer took for each second of speech: below 1 it came faster than it plays.

        None where there is no speech."""
        return self.finished.total / self.audio_seconds if self.audio_seconds else None

    def __repr__(self) -> str:
        speech = f", {self.audio_seconds:.2f} s of speech" if len(self.audio) else ""
        return f"Answer({self.text!r}{speech}, {self.finished.finish_reason})"

    def _repr_html_(self) -> str:
        """Text, a player where there is speech, and what it took, for notebooks."""
        took = [
            f"{what} {seconds:.2f} s"
            for what, seconds in (
                ("first text", self.finished.first_text),
                ("first audio", self.finished.first_audio),
                ("all", self.finished.total),
            )
            if seconds is not None
        ]
        speech = player(self.audio, self.sample_rate) if len(self.audio) else ""
        return paragraph(self.text) + speech + small(" · ".join(took))

    def save_wav(self, path: str | Path) -> None:
        """Write the speech as a 16-bit mono WAV file; what is beyond -1..1 is clipped.

        Raises ValueError where there is none.
        """
        if not self.sample_rate:
            raise ValueError("the answer has no speech")
        save_wav(path, self.audio, self.sample_rate)


def save_wav(path: str | Path, samples: np.ndarray, sample_rate: int) -> None:
    """Write float samples [n] in -1..1 as a 16-bit mono WAV file; what is beyond is clipped."""
    Path(path).write_bytes(wav_file(samples, sample_rate))
