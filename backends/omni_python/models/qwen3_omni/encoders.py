"""The audio and the vision encoder, each alone: a tower with the weights of its own prefix.

Both encode several requests together, in forwards of bounded size: long inputs in pieces, short ones side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, built_dummy, is_dummy
from omni_python.models.loading.modules import on_meta
from omni_python.models.media.pieces import packed
from omni_python.models.media.vision_tower import VisionTower
from omni_python.models.qwen3_omni.architecture import model_config
from omni_python.models.qwen3_omni.audio_tower import AudioTower
from omni_python.models.qwen3_omni.encoder_pieces import (
    AudioPiece,
    AudioWindows,
    RequestPiece,
    audio_pieces,
    request_pieces,
)
from omni_python.models.qwen3_omni.features import audio_tokens
from omni_python.models.qwen3_omni.payloads import AudioEmbeds, AudioInput, VisionEmbeds, VisionInput
from omni_python.models.qwen3_omni.weights import fill
from omni_python.proto.errors import Unsupported

DEFAULT_PATCHES = 8192
DEFAULT_FRAMES = 8000
"""What one forward takes where no share of a GPU's memory says what fits: a few steps of video, 80 s of sound."""


class AudioEncoder:
    """Log-mel features to embeddings in the thinker's space; computes in `dtype`, hands out float32 on the CPU.

    `max_batch_frames` bounds the mel frames of a forward; one window of attention is never cut.
    """

    def __init__(
        self,
        model_path: str | Path,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        load_format: LoadFormat = "auto",
    ) -> None:
        config = model_config(model_path).thinker_config.audio_config
        weights = _Weights(model_path, "thinker.audio_tower.", device, dtype, load_format)
        self._tower = _load_tower(AudioTower, config, weights)
        self._device, self._dtype = device, dtype
        self._windows = AudioWindows.of(config.n_window, config.n_window_infer)
        self.max_batch_frames = DEFAULT_FRAMES
        self.bytes_per_frame = _bytes_per_frame(config, dtype.itemsize)

    def __call__(self, audio: AudioInput) -> AudioEmbeds:
        """Encode all clips of a request; each attends to itself alone."""
        return next(self.encode([audio]))

    def encode(self, requests: Sequence[AudioInput]) -> Iterator[AudioEmbeds]:
        """Each request's embeddings, in order and as soon as its last piece is computed; none is without input."""
        pieces = audio_pieces(requests, self._windows, self.max_batch_frames)
        left = Counter(piece.owner for piece in pieces)
        made: list[torch.Tensor] = []
        for together in self._batches(pieces):
            for piece, tokens in zip(together, self._forward(together), strict=True):
                made.append(tokens)
                left[piece.owner] -= 1
                if not left[piece.owner]:
                    yield AudioEmbeds(torch.cat(made))
                    made = []

    def _batches(self, pieces: Sequence[AudioPiece]) -> Iterator[list[AudioPiece]]:
        for _, alike in groupby(pieces, lambda piece: piece.width):
            yield from packed(list(alike), self.max_batch_frames)

    @torch.inference_mode()
    def _forward(self, pieces: Sequence[AudioPiece]) -> list[torch.Tensor]:
        """The tokens of each piece, all pieces of equal `width`."""
        width = pieces[0].width
        chunks, lengths = [], []
        for piece in pieces:
            features = piece.features.to(self._device, self._dtype)
            chunks.append(F.pad(features, (0, -piece.size % width)).unflatten(1, (-1, width)).transpose(0, 1))
            lengths += [min(width, piece.size - start) for start in range(0, piece.size, width)]
        per_chunk = audio_tokens(width, self._windows.chunk // 2)
        tokens = [audio_tokens(piece.size, self._windows.chunk // 2) for piece in pieces]
        made = self._tower(torch.cat(chunks), self._places(lengths, per_chunk), self._windows_of(tokens, per_chunk))
        return list(made.float().cpu().split(tokens))

    def _places(self, lengths: Sequence[int], per_chunk: int) -> torch.Tensor:
        """Where the tokens of each chunk lie among all, of which every chunk has `per_chunk`."""
        counts = torch.tensor([audio_tokens(length, self._windows.chunk // 2) for length in lengths])
        return (torch.arange(per_chunk) < counts[:, None]).flatten().nonzero()[:, 0].to(self._device)

    def _windows_of(self, tokens: Sequence[int], per_chunk: int) -> list[int]:
        """How long the windows of attention of each piece are."""
        window = per_chunk * (self._windows.window // self._windows.chunk)
        return [min(window, count - start) for count in tokens for start in range(0, count, window)]


class VisionEncoder:
    """Patches to embeddings in the thinker's space; computes in `dtype`, hands out float32 on the CPU.

    `max_batch_patches` bounds the patches of a forward; a picture, or a temporal step of a video, is never cut.
    """

    def __init__(
        self,
        model_path: str | Path,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        load_format: LoadFormat = "auto",
    ) -> None:
        config = model_config(model_path).thinker_config.vision_config
        weights = _Weights(model_path, "thinker.visual.", device, dtype, load_format)
        self._tower = _load_tower(VisionTower, config, weights)
        self._device, self._dtype = device, dtype
        self._merged = config.spatial_merge_size**2
        self.max_batch_patches = DEFAULT_PATCHES
        self.bytes_per_patch = _bytes_per_patch(config, dtype.itemsize)

    def __call__(self, vision: VisionInput) -> VisionEmbeds:
        """Encode the images and the videos of a request; each picture attends to itself alone, a video step by step."""
        return next(self.encode([vision]))

    def encode(self, requests: Sequence[VisionInput]) -> Iterator[VisionEmbeds]:
        """Each request's embeddings, in order and as soon as its last piece is computed; none is without input."""
        pieces = request_pieces(requests, self.max_batch_patches)
        left = Counter(piece.owner for piece in pieces)
        images, videos = _Tokens(), _Tokens()
        for together in packed(pieces, self.max_batch_patches):
            for piece, tokens in zip(together, self._forward(together), strict=True):
                (videos if piece.is_video else images).append(tokens)
                left[piece.owner] -= 1
                if not left[piece.owner]:
                    yield _vision_embeds(images, videos)
                    images, videos = _Tokens(), _Tokens()

    @torch.inference_mode()
    def _forward(self, pieces: Sequence[RequestPiece]) -> list[list[torch.Tensor]]:
        """Of each piece, the embeddings of its tokens and those of every deepstack layer."""
        pixels = torch.cat([piece.pixels for piece in pieces]) if len(pieces) > 1 else pieces[0].pixels
        try:
            made, deepstack = self._tower(pixels.to(self._device, self._dtype), [piece.grid for piece in pieces])
        except torch.cuda.OutOfMemoryError as error:
            largest = max(piece.grid[1] * piece.grid[2] for piece in pieces)
            raise Unsupported(
                f"a picture of {largest} patches needs more GPU memory than the vision encoder may use; send a smaller "
                "one, or give the stage a larger total_gpu_memory_fraction"
            ) from error
        tokens = [piece.size // self._merged for piece in pieces]
        kinds = [kind.float().cpu().split(tokens) for kind in (made, *deepstack)]
        return [list(of_piece) for of_piece in zip(*kinds, strict=True)]


class _Tokens(list[list[torch.Tensor]]):
    """Piece after piece: its embeddings and those of the deepstack layers."""

    def joined(self) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        if not self:
            return None, []
        embeds, *deepstack = (torch.cat(parts) for parts in zip(*self, strict=True))
        return embeds, deepstack


def _vision_embeds(images: _Tokens, videos: _Tokens) -> VisionEmbeds:
    image, image_deepstack = images.joined()
    video, video_deepstack = videos.joined()
    return VisionEmbeds(image, video, image_deepstack, video_deepstack)


def _bytes_per_patch(config: Any, itemsize: int) -> int:
    """Of the intermediate tensors of a forward, at the widest place.

    Attention holds the residual, its norm and queries, keys and values in the tower's precision (five rows) while it
    rotates queries and keys in float32 (seven rows at once); the MLP holds the residual, its norm, and its wide layer
    before and after the activation. The merged tokens and those of the deepstack layers stay until the end.
    """
    attention = config.hidden_size * (5 * itemsize + 7 * 4)
    mlp = itemsize * (2 * config.hidden_size + 2 * config.intermediate_size)
    outputs = 1 + len(config.deepstack_visual_indexes)
    kept = itemsize * outputs * config.out_hidden_size // config.spatial_merge_size**2
    pixels = itemsize * config.in_channels * config.temporal_patch_size * config.patch_size**2
    return max(attention, mlp) + kept + pixels


def _bytes_per_frame(config: Any, itemsize: int) -> int:
    """Of the intermediate tensors of a forward, at the widest place: the first convolution, which halves both sides.

    Its output stands there before and after the activation, and as much again is left for cuDNN's workspace.
    """
    return 3 * itemsize * config.downsample_hidden_size * config.num_mel_bins // 4


class _Weights(NamedTuple):
    model_path: str | Path
    prefix: str
    device: str
    dtype: torch.dtype
    load_format: LoadFormat


def _load_tower(tower_class: type[AudioTower] | type[VisionTower], config: Any, weights: _Weights) -> Any:
    """A tower with the weights of its prefix, or random ones."""
    if is_dummy(weights.load_format):
        return built_dummy(lambda: tower_class(config), weights.dtype, weights.device)
    with on_meta():
        tower = tower_class(config)
    tensors = read_tensors(weights.model_path, weights.prefix, weights.dtype, weights.device)
    return fill(tower, tensors, weights.prefix.rstrip("."))
