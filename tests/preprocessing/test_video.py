"""Video: the frames that Hugging Face would sample, within bounds."""

from __future__ import annotations

import numpy as np
import pytest

from omni_python.preprocessing.video import Sampling, decode_video, probe_video
from omni_python.proto.errors import InvalidArgument
from tests.oracle.cases import MEDIA
from tests.oracle.make_media import picture

SILENT = (MEDIA / "silent.mp4").read_bytes()
TALKING = (MEDIA / "talking.mp4").read_bytes()


def test_headers() -> None:
    silent, talking = probe_video(SILENT), probe_video(TALKING)
    assert (silent.width, silent.height, silent.frames, silent.rate, silent.has_sound) == (128, 96, 24, 10.0, False)
    assert (talking.frames, talking.rate, talking.has_sound) == (38, 12.0, True)


def test_frames_are_evenly_spread() -> None:
    video = decode_video(SILENT)
    assert video.frames.shape == (4, 96, 128, 3) and video.frames.dtype == np.uint8
    for frame, index in zip(video.frames, (0, 6, 12, 18), strict=True):
        assert np.abs(frame.astype(int) - picture(128, 96, index / 23)).mean() < 12, f"this is not frame {index}"


def test_frames_are_transformed_as_they_come() -> None:
    video = decode_video(np.frombuffer(TALKING, np.uint8), transform=lambda frame: frame[::2, ::2])
    np.testing.assert_array_equal(video.frames, decode_video(TALKING).frames[:, ::2, ::2])


def test_sampling_equals_hugging_face_on_fresh_lengths() -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng()
    for _ in range(300):
        total, rate = int(random.integers(2, 5000)), float(random.choice([5, 12.5, 23.976, 24, 25, 29.97, 30, 60]))
        fps, smallest, most = (
            random.choice([0.5, 1, 2, 4]),
            int(random.choice([2, 4, 8])),
            int(random.choice([16, 768])),
        )
        # the rule of Qwen2VLVideoProcessor.sample_frames, in its own order of operations
        limit = min(most, total) // 2 * 2
        count = int(min(min(max(total / rate * fps, smallest), limit), total) // 2 * 2)
        expected = torch.arange(0, total, total / count).int().tolist()
        assert Sampling(fps, smallest, most).indices(total, rate) == expected[:count], (
            total,
            rate,
            fps,
            smallest,
            most,
        )


def test_a_single_frame_is_kept() -> None:
    assert Sampling().indices(1, 25.0) == [0]
    assert Sampling().indices(3, 25.0) == [0, 1]


@pytest.mark.parametrize("data", [b"", b"RIFF", b"video" * 99, (MEDIA / "voice_8k.wav").read_bytes()])
def test_anything_else_is_an_error_that_names_the_formats(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="accepted formats: mp4"):
        decode_video(data)


def test_a_damaged_file_is_an_error_or_shorter() -> None:
    with pytest.raises(InvalidArgument, match="accepted formats: mp4"):
        decode_video(SILENT[:700])
    damaged = bytearray(SILENT)
    damaged[100:2500] = b"\x00" * 2400
    with pytest.raises(InvalidArgument, match="accepted formats: mp4"):
        decode_video(bytes(damaged))


def test_limits() -> None:
    with pytest.raises(InvalidArgument, match=r"2\.4 s: at most 2 s"):
        decode_video(SILENT, max_seconds=2)
    with pytest.raises(InvalidArgument, match="128 x 96 pixels: at most 9999"):
        probe_video(SILENT, max_pixels=9999)
    assert len(decode_video(TALKING, Sampling(fps=100, max_frames=8)).frames) == 8
