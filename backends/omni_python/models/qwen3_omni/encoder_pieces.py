"""What goes through an encoder in one forward: inputs of several requests, cut where attention does not reach across.

The vision tower attends within one temporal step of one picture or video, the audio tower within windows of a clip; so
what is computed of a piece is what would be computed of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omni_python.models.media.pieces import VisionPiece, vision_pieces
from omni_python.models.qwen3_omni.payloads import AudioInput, VisionInput


@dataclass(frozen=True)
class RequestPiece(VisionPiece):
    """Of the request `owner`, an image or a video."""

    owner: int
    is_video: bool


@dataclass(frozen=True)
class AudioPiece:
    """Whole windows of one clip, or its end: `features` [mel_bins, n].

    The tower's convolutions run over chunks of a clip, which it pads with zeros to the longest of its call; what they
    make of the end of a shorter one depends on that. `width` is the longest of the piece's own request.
    """

    owner: int
    features: torch.Tensor
    width: int

    @property
    def size(self) -> int:
        return self.features.shape[1]


@dataclass(frozen=True)
class AudioWindows:
    """Mel frames of a chunk that is convolved, and of a window that attends to itself: a number of chunks."""

    chunk: int
    window: int

    @staticmethod
    def of(n_window: int, n_window_infer: int) -> AudioWindows:
        """From the names in a checkpoint's `audio_config`."""
        chunk = 2 * n_window
        return AudioWindows(chunk, n_window_infer // chunk * chunk)


def request_pieces(requests: Sequence[VisionInput], most: int) -> list[RequestPiece]:
    """The pieces of all requests in order, images before videos; of at most `most` patches unless one step has more."""
    pieces = []
    for owner, request in enumerate(requests):
        given = ((request.image_pixels, request.image_grids), (request.video_pixels, request.video_grids))
        for is_video, (pixels, grids) in enumerate(given):
            if pixels is not None and grids is not None:
                cut = vision_pieces(pixels, grids, most)
                pieces += [RequestPiece(piece.pixels, piece.grid, owner, bool(is_video)) for piece in cut]
    return pieces


def audio_pieces(requests: Sequence[AudioInput], windows: AudioWindows, most: int) -> list[AudioPiece]:
    """The pieces of all requests in order; of at most `most` frames unless a window has more."""
    at_once = max(1, most // windows.window) * windows.window
    pieces = []
    for owner, request in enumerate(requests):
        lengths = request.lengths.tolist()
        width = min(windows.chunk, max(lengths))
        for clip in request.features.split(lengths, dim=1):
            pieces += [AudioPiece(owner, part, width) for part in clip.split(at_once, dim=1)]
    return pieces
