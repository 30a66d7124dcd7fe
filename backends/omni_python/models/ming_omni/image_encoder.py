"""The thinker's eye: Qwen3's vision encoder, and a projection to the thinker's size.

Published names are those of Qwen3-VL's tensors; `_NAMES` says how `VisionTower` calls the same.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.modules import assign, on_meta
from omni_python.models.media.pieces import VisionPiece, packed, vision_pieces
from omni_python.models.media.vision_tower import VisionTower
from omni_python.models.ming_omni.encoder_architecture import ImageEncoderConfig
from omni_python.models.ming_omni.payloads import PictureEmbeds, Pictures

_PARTS = ("vision.patch_embed.", "vision.pos_embed.", "vision.blocks.", "vision.merger.", "linear_proj.")
"""A checkpoint also has mergers of deepstack layers, for which the published model has no use."""
_NAMES = {"merger.norm.": "merger.ln_q.", "merger.linear_fc1.": "merger.mlp.0.", "merger.linear_fc2.": "merger.mlp.2."}


class ImageEncoder(nn.Module):
    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        self.vision = VisionTower(config.tower)
        deeper = [
            layer for _ in range(1, config.depth) for layer in (nn.GELU(), nn.Linear(config.output, config.output))
        ]
        self.linear_proj = nn.Sequential(nn.Linear(config.tower.out_hidden_size, config.output), *deeper)

    def forward(self, pieces: list[VisionPiece]) -> torch.Tensor:
        """float32 [tokens, output] of length 1."""
        weight = self.vision.patch_embed.proj.weight
        pixels = torch.cat([piece.pixels for piece in pieces]).to(weight.device, weight.dtype)
        seen, _ = self.vision(pixels, [piece.grid for piece in pieces])
        return F.normalize(self.linear_proj(seen).float(), dim=-1)


class PictureEncoder:
    """Pictures -> PictureEmbeds; at most `most_patches` at once, but a picture, or two frames, are never cut."""

    def __init__(self, encoder: ImageEncoder, most_patches: int) -> None:
        self._encoder = encoder
        self._most = most_patches

    @torch.inference_mode()
    def __call__(self, pictures: Pictures) -> PictureEmbeds:
        pieces = list(vision_pieces(pictures.patches, pictures.grids, self._most))
        return PictureEmbeds(torch.cat([self._encoder(together).cpu() for together in packed(pieces, self._most)]))


def load_image_encoder(
    path: str | Path, config: ImageEncoderConfig, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto"
) -> ImageEncoder:
    """Of the checkpoint at `path`. Raises `CheckpointError`."""
    with on_meta():
        encoder = ImageEncoder(config)
    if is_dummy(load_format):
        return draw_weights(encoder, dtype, device)
    tensors: dict[str, torch.Tensor] = {}
    for part in _PARTS:
        tensors |= {_renamed(part + name): t for name, t in read_tensors(path, part, dtype, device).items()}
    return assign(encoder, tensors, "image encoder")


def _renamed(name: str) -> str:
    for theirs, ours in _NAMES.items():
        name = name.replace(theirs, ours)
    return name
