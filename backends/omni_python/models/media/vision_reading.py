"""A request's pictures and videos to patches, within what the request may still take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from omni_python.models.media.patches import Patcher
from omni_python.models.media.pieces import VisionPiece
from omni_python.preprocessing.container import Encoded
from omni_python.preprocessing.image import decode_image
from omni_python.preprocessing.video import Sampling, VideoInfo, decode_video, probe_video
from omni_python.proto.errors import InvalidArgument


@dataclass
class VisionRoom:
    """Of one request: `pixels` of pictures, as they were sent, that are still accepted, and the `tokens` that its
    pictures and videos have so far, of less than `context`."""

    pixels: int
    context: int
    tokens: int = 0

    def take(self, tokens: int) -> None:
        """Raises `InvalidArgument` where the context is full."""
        self.tokens += tokens
        if self.tokens >= self.context:
            raise InvalidArgument(f"the prompt has at least {self.tokens} tokens; the context holds {self.context}")


@dataclass(frozen=True)
class ReadVideo:
    """`frames` is how many of the file's, which `info` tells of, are in `piece`."""

    piece: VisionPiece
    frames: int
    info: VideoInfo


def read_picture(data: Encoded, patcher: Patcher, room: VisionRoom) -> VisionPiece:
    """Raises `InvalidArgument` for an unreadable file, or one that does not fit into `room`."""
    decoded = decode_image(data, room.pixels)
    room.pixels -= decoded.shape[0] * decoded.shape[1]
    piece = patcher.piece(patcher.resize(decoded)[None])
    room.take(patcher.tokens(piece.grid))
    return piece


def read_video(data: Encoded, sampling: Sampling, patcher_of: Callable[[int], Patcher], room: VisionRoom) -> ReadVideo:
    """By the patcher for so many frames. Raises `InvalidArgument` as `read_picture` does."""
    info = probe_video(data)
    frames = len(sampling.indices(info.frames, info.rate))
    patcher = patcher_of(frames)
    # before anything is decoded, for decoded it may not fit into memory
    room.take(patcher.tokens(patcher.grid(frames, info.height, info.width)))
    video = decode_video(data, sampling, transform=patcher.resize)
    return ReadVideo(patcher.piece(video.frames), len(video.frames), video.info)
