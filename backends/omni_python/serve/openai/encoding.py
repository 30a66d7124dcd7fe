"""Speech in the file formats of OpenAI's API, encoded piece by piece as it comes."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import av
import av.filter
import numpy as np

from omni_python.proto.wav import pcm16, wav_file

_UNKNOWN_LENGTH = 0xFFFFFFFF
"""In a WAV header: what players take for "until the stream ends" (ffmpeg writes the same into pipes)."""

_MAX_TEMPO = 2.0
"""Of one `atempo` filter without skipping samples; its lower bound is the inverse. More is reached by a chain."""


@dataclass(frozen=True)
class _Format:
    content_type: str
    container: str = ""
    codec: str = ""
    rates: tuple[int, ...] = ()
    """Sample rates of the codec in ascending order; empty for any."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the container."""


_MPEG_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)

FORMATS: dict[str, _Format] = {
    "wav": _Format("audio/wav"),
    "mp3": _Format("audio/mpeg", "mp3", "libmp3lame", _MPEG_RATES),
    "flac": _Format("audio/flac", "flac", "flac"),
    "opus": _Format("audio/ogg", "ogg", "libopus", (8000, 12000, 16000, 24000, 48000), {"page_duration": "100000"}),
    "aac": _Format("audio/aac", "adts", "aac", _MPEG_RATES),
    "pcm16": _Format("audio/pcm"),
    "pcm": _Format("audio/pcm"),
}
"""By OpenAI's names. PCM is 16-bit little-endian mono at the pipeline's own rate, without a header."""


def content_type(name: str, sample_rate: int) -> str:
    """The media type of a format; that of bare samples says their rate."""
    kind = FORMATS[name].content_type
    return f"{kind};rate={sample_rate}" if kind == "audio/pcm" else kind


def _stream_header(sample_rate: int) -> bytes:
    """The 44 bytes before 16-bit mono samples (RIFF, WAVE_FORMAT_PCM) of a stream whose end is not known."""
    parts = (b"RIFF", _UNKNOWN_LENGTH, b"WAVE", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return struct.pack("<4sI4s4sIHHIIHH4sI", *parts, b"data", _UNKNOWN_LENGTH)


class SpeechEncoder:
    """Encodes one answer's speech: `encode` each piece, then `close`; the bytes returned, joined, are the file.

    `speed` (0.25 to 4) changes the tempo and not the pitch. Whole files get their right length into the header with
    `encoded`; in a streamed WAV it is left open.
    """

    def __init__(self, name: str, sample_rate: int, speed: float = 1.0) -> None:
        """`name` is a key of `FORMATS`."""
        self._header = _stream_header(sample_rate) if name == "wav" else b""
        self._tempo = _Tempo(sample_rate, speed) if speed != 1.0 else None
        self._codec = _Codec(FORMATS[name], sample_rate) if FORMATS[name].codec else None

    def encode(self, samples: np.ndarray) -> bytes:
        """The next float32 samples [n] in -1..1; what can be sent of them now, which may be nothing yet."""
        if self._tempo is not None:
            samples = self._tempo.push(samples)
        return self._write(samples)

    def close(self) -> bytes:
        """The rest of the file."""
        rest = self._write(self._tempo.end() if self._tempo is not None else np.empty(0, np.float32))
        return rest + (self._codec.end() if self._codec is not None else b"")

    def _write(self, samples: np.ndarray) -> bytes:
        if self._codec is not None:
            return self._codec.push(samples)
        header, self._header = self._header, b""
        return header + pcm16(samples)


def encoded(name: str, samples: np.ndarray, sample_rate: int) -> bytes:
    """A whole file of float32 samples [n] in -1..1."""
    if name == "wav":
        return wav_file(samples, sample_rate)
    encoder = SpeechEncoder(name, sample_rate)
    return encoder.encode(samples) + encoder.close()


class _Pipe:
    """A file that can only be written to, and emptied."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data, self._written = b"".join(self._written), []
        return data


class _Codec:
    """One of FFmpeg's encoders and its container."""

    def __init__(self, form: _Format, sample_rate: int) -> None:
        self._pipe = _Pipe()
        self._container: Any = av.open(self._pipe, "w", format=form.container, options=dict(form.options))
        rate = next((rate for rate in form.rates if rate >= sample_rate), form.rates[-1] if form.rates else sample_rate)
        self._stream: Any = self._container.add_stream(form.codec, rate=rate, layout="mono")
        codec: Any = self._stream.codec_context
        self._resampler = av.AudioResampler(codec.format, "mono", rate)
        self._sample_rate, self._count = sample_rate, 0

    def push(self, samples: np.ndarray) -> bytes:
        if len(samples):
            for frame in self._resampler.resample(audio_frame(samples, self._sample_rate, self._count)):
                self._container.mux(self._stream.encode(frame))
            self._count += len(samples)
        return self._pipe.take()

    def end(self) -> bytes:
        for frame in self._resampler.resample(None) if self._count else []:
            self._container.mux(self._stream.encode(frame))
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._pipe.take()


class _Tempo:
    """FFmpeg's `atempo`, as often as needed."""

    def __init__(self, sample_rate: int, speed: float) -> None:
        self._graph: Any = av.filter.Graph()
        source = self._graph.add_abuffer(sample_rate=sample_rate, format="flt", layout="mono")
        steps = [source, *(self._graph.add("atempo", f"{tempo:.6f}") for tempo in _tempos(speed))]
        steps.append(self._graph.add("abuffersink"))
        for one, other in itertools.pairwise(steps):
            one.link_to(other)
        self._graph.configure()
        self._sample_rate, self._count = sample_rate, 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        if not len(samples):
            return samples
        self._graph.push(audio_frame(samples, self._sample_rate, self._count))
        self._count += len(samples)
        return self._pull()

    def end(self) -> np.ndarray:
        if not self._count:
            return np.empty(0, np.float32)
        self._graph.push(None)
        return self._pull()

    def _pull(self) -> np.ndarray:
        return np.concatenate([np.empty(0, np.float32), *self._frames()])

    def _frames(self) -> Iterator[np.ndarray]:
        while True:
            try:
                yield self._graph.pull().to_ndarray().reshape(-1)
            except (av.error.BlockingIOError, av.error.EOFError):
                return


def _tempos(speed: float) -> list[float]:
    tempos = []
    while not 1 / _MAX_TEMPO <= speed <= _MAX_TEMPO:
        step = _MAX_TEMPO if speed > 1 else 1 / _MAX_TEMPO
        tempos.append(step)
        speed /= step
    return [*tempos, speed]


def audio_frame(samples: np.ndarray, sample_rate: int, start: int) -> av.AudioFrame:
    """FFmpeg's frame of float32 samples [n], the first of which is number `start` of its stream."""
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples, np.float32)[None], format="flt", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = sample_rate, start, Fraction(1, sample_rate)
    return frame
