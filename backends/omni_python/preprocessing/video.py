"""Video files to evenly sampled RGB frames."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from omni_python.preprocessing.container import DECODE_SECONDS, VIDEO_FORMATS, Encoded, TimeLimit, open_media
from omni_python.proto.errors import InvalidArgument

MAX_SECONDS = 384.0
"""The default `Sampling` keeps its rate up to this length (768 frames); a longer one would seem faster."""
MAX_PIXELS = 16_000_000
"""Of one frame."""


@dataclass(frozen=True)
class Sampling:
    """Which frames are kept: `fps` a second, between `min_frames` and `max_frames`, a multiple of `multiple`."""

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    multiple: int = 2

    def indices(self, total: int, rate: float) -> list[int]:
        """Indices, evenly spread, of the frames to keep of `total` frames at `rate` a second.

        As Hugging Face's Qwen2VLVideoProcessor.sample_frames, but never one more by rounding, and a video with fewer
        than `multiple` frames keeps them all (the patches' temporal padding repeats the last one).
        """
        most = min(self.max_frames, total) // self.multiple * self.multiple
        count = min(max(total / rate * self.fps, self.min_frames), most, total)
        count = math.floor(count / self.multiple) * self.multiple
        if count == 0:
            return list(range(total))
        # cut off in float32, as there
        return (np.arange(count) * (total / count)).astype(np.float32).astype(int).tolist()


@dataclass(frozen=True)
class VideoInfo:
    """What the headers and packets tell: `rate` in frames a second, `frames` in all, size in pixels."""

    width: int
    height: int
    frames: int
    rate: float
    has_sound: bool


@dataclass(frozen=True)
class Video:
    """`frames` uint8 [T, H, W, 3]; `info` is of the whole file."""

    frames: np.ndarray
    info: VideoInfo


def probe_video(data: Encoded, max_seconds: float = MAX_SECONDS, max_pixels: int = MAX_PIXELS) -> VideoInfo:
    """Read a video's headers and count its frames without decoding; `InvalidArgument` where it breaks a limit."""
    with open_media(data, "video", VIDEO_FORMATS, TimeLimit()) as container:
        if not container.streams.video or container.streams.video[0].codec_context is None:
            raise InvalidArgument(f"the video file has no picture; accepted formats: {VIDEO_FORMATS}")
        stream = container.streams.video[0]
        width, height = stream.codec_context.width, stream.codec_context.height
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        has_sound = bool(container.streams.audio)
        frames = sum(1 for packet in container.demux(stream) if packet.size)
    if not (frames and rate > 0 and width and height):
        raise InvalidArgument(f"the video file has no readable picture; accepted formats: {VIDEO_FORMATS}")
    if width * height > max_pixels:
        raise InvalidArgument(f"video of {width} x {height} pixels: at most {max_pixels} a frame are accepted")
    if frames / rate > max_seconds:
        raise InvalidArgument(f"video of {frames / rate:.1f} s: at most {max_seconds:g} s are accepted")
    return VideoInfo(width, height, frames, rate, has_sound)


def decode_video(
    data: Encoded,
    sampling: Sampling | None = None,
    max_seconds: float = MAX_SECONDS,
    max_pixels: int = MAX_PIXELS,
    transform: Callable[[np.ndarray], np.ndarray] | None = None,
    decode_seconds: float = DECODE_SECONDS,
) -> Video:
    """The sampled frames of a video file; its sound track is read by `audio.decode_audio`.

    `transform` is applied to each kept frame as it is decoded (for example to shrink it, so that memory holds no
    full-size frames). Raises `InvalidArgument` like `probe_video`, and for what takes longer than `decode_seconds`.
    """
    sampling = sampling or Sampling()
    info = probe_video(data, max_seconds, max_pixels)
    limit = TimeLimit(decode_seconds)
    frames, total = _decode(data, sampling.indices(info.frames, info.rate), transform, limit, info)
    if total != info.frames:  # packets that are no frame, or broken ones
        if not total:
            raise InvalidArgument(f"no frame of the video file can be decoded; accepted formats: {VIDEO_FORMATS}")
        info = VideoInfo(info.width, info.height, total, info.rate, info.has_sound)
        frames, _ = _decode(data, sampling.indices(total, info.rate), transform, limit, info)
    return Video(np.stack(frames), info)


def _decode(
    data: Encoded,
    indices: list[int],
    transform: Callable[[np.ndarray], np.ndarray] | None,
    limit: TimeLimit,
    info: VideoInfo,
) -> tuple[list[np.ndarray], int]:
    """The frames at `indices`, as far as there are any, and the number of all frames."""
    wanted = set(indices)
    kept: list[np.ndarray] = []
    total = 0
    with open_media(data, "video", VIDEO_FORMATS, limit) as container:
        for total, frame in enumerate(container.decode(video=0), 1):
            limit.check()
            if (frame.width, frame.height) != (info.width, info.height):
                raise InvalidArgument(
                    f"the video's size changes from {info.width} x {info.height} to {frame.width} x {frame.height}; "
                    "only videos of one size are accepted"
                )
            if total - 1 in wanted:
                image = frame.to_ndarray(format="rgb24")
                kept.append(transform(image) if transform else image)
    return kept, total
