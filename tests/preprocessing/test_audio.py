"""Sound: every format and rate ends as mono 16 kHz; nonsense is refused."""

from __future__ import annotations

import io
import wave
from typing import Any

import av
import numpy as np
import pytest
from scipy.signal import resample_poly

from omni_python.preprocessing.audio import decode_audio, resample
from omni_python.proto.errors import InvalidArgument
from tests.oracle.cases import MEDIA


def read_wav(name: str) -> tuple[np.ndarray, int]:
    with wave.open(str(MEDIA / name)) as file:
        raw = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        return raw.reshape(-1, file.getnchannels()), file.getframerate()


def encode(samples: np.ndarray, rate: int, container: str, codec: str, layout: str = "mono") -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(samples.astype(np.float32), format="fltp", layout=layout)
        frame.sample_rate = rate
        for piece in av.AudioResampler(format=stream.format, layout=layout, rate=rate).resample(frame):
            file.mux(stream.encode(piece))
        file.mux(stream.encode())
    return out.getvalue()


def assert_like(made: np.ndarray, expected: np.ndarray) -> None:
    """The same sound but for the filters' edges: two resamplers differ by some thousandths in the pass band."""
    assert made.dtype == np.float32 and abs(made.size - expected.size) <= 32
    middle = slice(400, min(made.size, expected.size) - 400)
    error = np.sqrt(np.mean((made[middle] - expected[middle]) ** 2))
    assert error < 0.03 * np.sqrt(np.mean(expected[middle] ** 2))


def test_16_khz_wav_is_unchanged() -> None:
    samples, _ = read_wav("voice_16k.wav")
    data = (MEDIA / "voice_16k.wav").read_bytes()
    np.testing.assert_array_equal(decode_audio(data), samples[:, 0])
    np.testing.assert_array_equal(decode_audio(np.frombuffer(data, np.uint8)), samples[:, 0])


@pytest.mark.parametrize(("name", "up", "down"), [("voice_8k.wav", 2, 1), ("stereo_44k.wav", 160, 441)])
def test_other_rates_are_resampled_and_channels_averaged(name: str, up: int, down: int) -> None:
    samples, rate = read_wav(name)
    expected = resample_poly(samples.mean(axis=1), up, down)
    assert_like(decode_audio((MEDIA / name).read_bytes()), expected)
    assert_like(resample(samples.mean(axis=1), rate), expected)


@pytest.mark.parametrize("channels", [3, 6, 7, 8, 9, 16])
def test_any_number_of_channels_is_averaged(channels: int) -> None:
    samples = np.random.default_rng().integers(-(2**15), 2**15, (1600, channels), np.int16)
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((channels, 2, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    np.testing.assert_allclose(decode_audio(data.getvalue()), samples.mean(axis=1) / 32768, atol=1e-6)


@pytest.mark.parametrize(
    ("container", "codec"),
    [("flac", "flac"), ("ogg", "libopus"), ("mp3", "libmp3lame"), ("mp4", "aac"), ("aiff", "pcm_s16be")],
)
def test_compressed_formats(container: str, codec: str) -> None:
    rate = 48000
    time = np.arange(rate) / rate
    frequency = np.random.default_rng().uniform(300, 900)
    data = encode(0.3 * np.sin(2 * np.pi * frequency * time)[None], rate, container, codec)
    made = decode_audio(data)
    assert abs(made.size - 16000) < 2000
    spectrum = np.abs(np.fft.rfft(made * np.hanning(made.size)))
    peak = spectrum.argmax() * 16000 / made.size
    assert abs(peak - frequency) < 3
    # its power, not its peak: FFmpeg's AAC encoder at times makes a burst of twice the amplitude
    assert made[4000:12000].std() == pytest.approx(0.3 / np.sqrt(2), rel=0.2)


def test_sound_track_of_a_video() -> None:
    made = decode_audio((MEDIA / "talking.mp4").read_bytes())
    assert made.size == pytest.approx(3.1 * 16000, abs=2048)
    assert np.abs(made).max() > 0.1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF",
        b"not a sound at all" * 100,
        (MEDIA / "landscape.jpg").read_bytes(),
        (MEDIA / "silent.mp4").read_bytes(),
    ],
    ids=["empty", "header", "text", "jpeg", "silent video"],
)
def test_no_sound_is_an_error_that_names_the_formats(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="accepted formats: wav, mp3"):
        decode_audio(data)


def test_playlists_open_no_other_file() -> None:
    for playlist in (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{MEDIA / 'voice_16k.wav'}\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile '{MEDIA / 'voice_16k.wav'}'\n",
    ):
        with pytest.raises(InvalidArgument, match="unreadable audio"):
            decode_audio(playlist.encode())


def test_limits() -> None:
    data = (MEDIA / "voice_16k.wav").read_bytes()
    with pytest.raises(InvalidArgument, match="longer than 1 s"):
        decode_audio(data, max_seconds=1)
    with pytest.raises(InvalidArgument, match="longer than 2 s"):
        resample(np.zeros(48001, np.float32), 16000, max_seconds=2)


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (np.zeros((2, 8), np.float32), 16000, "mono"),
        (np.zeros(0, np.float32), 16000, "non-empty"),
        (np.zeros(9, np.float32), 0, "1000..768000"),
        (np.array([0, np.nan], np.float32), 16000, "finite"),
        (np.array([0, -np.inf], np.float32), 8000, "finite"),
        (np.array([0, 1e300]), 8000, "full scale is -1..1"),
        (np.array([0, -101], np.float32), 16000, "full scale is -1..1"),
    ],
)
def test_unusable_samples(samples: np.ndarray, rate: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        resample(samples, rate)


@pytest.mark.parametrize("sample", [np.nan, np.inf, 1e30, -101.0])
@pytest.mark.parametrize("rate", [16000, 44100])
def test_a_file_of_such_samples_is_refused_as_well(sample: float, rate: int) -> None:
    samples = np.full((1, rate), 0.1)
    samples[:, rate // 2 :] = sample
    with pytest.raises(InvalidArgument, match=r"finite numbers whose full scale is -1\.\.1"):
        decode_audio(encode(samples, rate, "wav", "pcm_f32le"))


def test_louder_than_full_scale_is_heard_as_it_is() -> None:
    samples = np.linspace(-50, 50, 16000, dtype=np.float32)
    np.testing.assert_array_equal(decode_audio(encode(samples[None], 16000, "wav", "pcm_f32le")), samples)
    np.testing.assert_array_equal(resample(samples, 16000), samples)


def test_samples_are_counted_before_they_are_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a low rate a few hold hours."""
    monkeypatch.setattr(av, "AudioResampler", None)
    with pytest.raises(InvalidArgument, match="longer than 2 s"):
        resample(np.zeros(2001, np.float32), 1000, max_seconds=2)
