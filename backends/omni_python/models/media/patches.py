"""Pictures and videos cut into normalised patches.

Equal to transformers' Qwen2VLImageProcessor and Qwen2VLVideoProcessor with the settings of Qwen2_5OmniProcessor and
Qwen3OmniMoeProcessor; they need torchvision there and do without it here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_python.models.loading.checkpoint import load_json
from omni_python.models.media.pieces import Grid, VisionPiece
from omni_python.proto.errors import InvalidArgument

VIDEO_TOKENS = (128, 768)
"""The fewest and the most that one frame of a video would be as a picture, from the defaults of both processors, which
go before the checkpoint's preprocessor files."""
MAX_ASPECT_RATIO = 200


@dataclass(frozen=True)
class Patcher:
    """Cuts pictures into normalised patches.

    A patch covers `temporal` frames of `patch` x `patch` pixels; `merge` x `merge` patches are one token.
    """

    patch: int
    temporal: int
    merge: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    min_pixels: int
    max_pixels: int

    @staticmethod
    def for_images(model_path: str | Path) -> Patcher:
        """With the checkpoint's preprocessor_config.json."""
        config = load_json(model_path, "preprocessor_config.json")
        size = config.get("size") or {}
        return _patcher(
            config,
            min_pixels=config.get("min_pixels") or size.get("shortest_edge") or 56 * 56,
            max_pixels=config.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280,
        )

    @staticmethod
    def for_videos(model_path: str | Path) -> Patcher:
        """With the checkpoint's preprocessor_config.json, but the size limits of videos."""
        config = load_json(model_path, "preprocessor_config.json")
        token = (config["patch_size"] * config["merge_size"]) ** 2
        return _patcher(config, VIDEO_TOKENS[0] * token, VIDEO_TOKENS[1] * token)

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width after resizing: multiples of a token's side, the pixel count within the limits."""
        if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
            raise InvalidArgument(
                f"a picture of {width} x {height} pixels is more than {MAX_ASPECT_RATIO} times as long"
            )
        side = self.patch * self.merge
        rows, columns = round(height / side) * side, round(width / side) * side
        if rows * columns > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows = max(side, math.floor(height / shrink / side) * side)
            columns = max(side, math.floor(width / shrink / side) * side)
        elif rows * columns < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows, columns = math.ceil(height * grow / side) * side, math.ceil(width * grow / side) * side
        return rows, columns

    def grid(self, frames: int, height: int, width: int) -> Grid:
        """(t, h, w) in patches of so many frames of that size."""
        rows, columns = self.target_size(height, width)
        return math.ceil(frames / self.temporal), rows // self.patch, columns // self.patch

    def tokens(self, grid: Grid) -> int:
        """Embeddings that the vision encoder makes of a picture or video."""
        return math.prod(grid) // self.merge**2

    def resize(self, image: np.ndarray) -> np.ndarray:
        """uint8 [H, W, 3] to the target size: bicubic, antialiased, in 8 bits."""
        target = self.target_size(*image.shape[:2])
        if target == image.shape[:2]:
            return image
        planes = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None]
        made = torch.nn.functional.interpolate(planes, size=target, mode="bicubic", antialias=True)
        return made[0].permute(1, 2, 0).numpy()

    def piece(self, frames: np.ndarray) -> VisionPiece:
        """A picture or video whose frames are uint8 [T, H, W, 3] of the target size."""
        return VisionPiece(self.patches(frames), self.grid(*frames.shape[:3]))

    def patches(self, frames: np.ndarray) -> torch.Tensor:
        """uint8 [T, H, W, 3] of the target size to float32 [patches, 3 * temporal * patch * patch].

        Frames are repeated at the end up to a multiple of `temporal`. The `merge` x `merge` patches of a token follow
        each other; inside a patch the order is channel, frame, row, column.
        """
        if missing := -len(frames) % self.temporal:
            frames = np.concatenate([frames, np.repeat(frames[-1:], missing, axis=0)])
        total, height, width, channels = frames.shape
        # normalised in one step on the 0..255 scale, as the reference does: another order rounds otherwise
        mean, std = torch.tensor(self.mean) * 255.0, torch.tensor(self.std) * 255.0
        values = (torch.from_numpy(np.ascontiguousarray(frames)).float() - mean) / std
        rows, columns = height // self.patch, width // self.patch
        split = values.reshape(
            total // self.temporal,
            self.temporal,
            rows // self.merge,
            self.merge,
            self.patch,
            columns // self.merge,
            self.merge,
            self.patch,
            channels,
        )
        ordered = split.permute(0, 2, 5, 3, 6, 8, 1, 4, 7)
        return ordered.reshape(total // self.temporal * rows * columns, -1)


def _patcher(config: dict[str, Any], min_pixels: int, max_pixels: int) -> Patcher:
    return Patcher(
        patch=config["patch_size"],
        temporal=config["temporal_patch_size"],
        merge=config["merge_size"],
        mean=tuple(config["image_mean"]),
        std=tuple(config["image_std"]),
        min_pixels=min_pixels,
        max_pixels=max_pixels,
    )
