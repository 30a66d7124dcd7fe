"""Audio files and raw samples to mono float32 at the rate of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import av
import numpy as np

from omni_python.preprocessing.container import AUDIO_FORMATS, DECODE_SECONDS, Encoded, TimeLimit, open_media
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart

SAMPLE_RATE = 16000
"""Hz; what the audio encoder hears."""
MAX_SECONDS = 1800.0
MAX_CHANNELS = 16
MAX_AMPLITUDE = 100.0
"""Full scale is 1, which float samples may pass: filters and lossy formats overshoot. Of 100 times that the scale is
another one, mostly that of integers."""
RATES = range(1000, 768_001)
"""Hz. Below, a small file holds hours; with any more channels, FFmpeg's resampler has crashed."""


def read_audio(part: AudioPart, sample_rate: int, max_seconds: float) -> np.ndarray:
    """A request's sound, an encoded file or samples, as `decode_audio` and `resample` give it."""
    if part.data is not None:
        return decode_audio(part.data, sample_rate, max_seconds)
    if part.samples is None or part.sample_rate is None:
        raise InvalidArgument("audio needs an encoded file, or samples with their sample rate")
    return resample(np.asarray(part.samples), part.sample_rate, sample_rate, max_seconds)


def decode_audio(
    data: Encoded,
    sample_rate: int = SAMPLE_RATE,
    max_seconds: float = MAX_SECONDS,
    decode_seconds: float = DECODE_SECONDS,
) -> np.ndarray:
    """Any common audio file, or the sound track of a video, as float32 [n] in -1..1: channels averaged, resampled.

    Raises `InvalidArgument` for bytes that hold no readable sound, for more than `max_seconds` of it, for samples that
    are not finite or beyond `MAX_AMPLITUDE`, and for what takes longer than `decode_seconds`. Memory never holds more
    than the sound allowed and one frame.
    """
    limit = TimeLimit(decode_seconds)
    with open_media(data, "audio", AUDIO_FORMATS, limit) as container:
        if not container.streams.audio:
            raise InvalidArgument(f"the audio file has no sound; accepted formats: {AUDIO_FORMATS}")
        return _resampled(_checked(container.decode(audio=0), limit), sample_rate, max_seconds)


def resample(
    samples: np.ndarray, from_rate: int, sample_rate: int = SAMPLE_RATE, max_seconds: float = MAX_SECONDS
) -> np.ndarray:
    """Mono samples [n] at `from_rate` Hz as float32 [m] at `sample_rate` Hz; the same errors as `decode_audio`."""
    if samples.ndim != 1 or samples.size == 0:
        raise InvalidArgument(f"audio samples must be a non-empty list of mono samples, not of shape {samples.shape}")
    _check_rate(from_rate)
    _check_length(samples.size, from_rate, max_seconds)  # resampled it may be many times as long
    _check_amplitude(samples)
    samples = np.ascontiguousarray(samples, np.float32)
    if from_rate == sample_rate:
        return samples
    frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
    frame.sample_rate = from_rate
    return _resampled([frame], sample_rate, max_seconds)


def _resampled(frames: Iterable[av.AudioFrame], sample_rate: int, max_seconds: float) -> np.ndarray:
    # libswresample's own stereo-to-mono mix is not the mean for float samples, so it keeps the channels; interleaved,
    # since PyAV (18 seen) crashes on frames with 8 planes or more
    resampler = av.AudioResampler(format="flt", rate=sample_rate)
    mono: list[np.ndarray] = []
    length = 0
    try:
        for frame in _flushed(frames):
            for piece in resampler.resample(frame):
                mono.append(piece.to_ndarray().reshape(-1, piece.layout.nb_channels).mean(axis=1))
                length += mono[-1].size
                _check_length(length, sample_rate, max_seconds)
                _check_amplitude(mono[-1])
    except ValueError as error:  # the layout or rate changes within the file
        raise InvalidArgument(f"unreadable audio file ({error}); accepted formats: {AUDIO_FORMATS}") from error
    if not length:
        raise InvalidArgument(f"the audio file has no sound; accepted formats: {AUDIO_FORMATS}")
    return np.concatenate(mono).astype(np.float32, copy=False)


def _checked(frames: Iterable[av.AudioFrame], limit: TimeLimit) -> Iterator[av.AudioFrame]:
    for frame in frames:
        limit.check()
        _check_rate(frame.sample_rate)
        if frame.layout.nb_channels > MAX_CHANNELS:
            raise InvalidArgument(f"audio has {frame.layout.nb_channels} channels; at most {MAX_CHANNELS} are accepted")
        yield frame


def _check_rate(rate: int) -> None:
    if rate not in RATES:
        raise InvalidArgument(f"audio sample rate {rate} Hz is not in {RATES[0]}..{RATES[-1]}")


def _flushed(frames: Iterable[av.AudioFrame]) -> Iterable[av.AudioFrame | None]:
    yield from frames
    yield None


def _check_length(samples: int, sample_rate: int, max_seconds: float) -> None:
    if samples > max_seconds * sample_rate:
        raise InvalidArgument(f"audio is longer than {max_seconds:g} s, the most that is accepted")


def _check_amplitude(samples: np.ndarray) -> None:
    """`samples` [n], which may be none."""
    if samples.size and not (samples.min() >= -MAX_AMPLITUDE and samples.max() <= MAX_AMPLITUDE):  # nor of NaN
        raise InvalidArgument(
            f"audio samples must be finite numbers whose full scale is -1..1; some are beyond {MAX_AMPLITUDE:g}"
        )
