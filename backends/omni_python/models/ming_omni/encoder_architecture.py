"""Sizes of the encoders of pictures and of sound, from a checkpoint's config.json and preprocessor_config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omni_python.models.loading.checkpoint import CheckpointError, load_config

VISION_TYPE = "qwen3_moe_vit"


@dataclass(frozen=True)
class EncoderConfig:
    """Whisper's encoder of at most `positions`, each of two frames, and a projection to `output` that convolves with
    `kernel` and `stride` and has `depth` layers; `normed` to length 1."""

    bins: int
    positions: int
    hidden: int
    heads: int
    layers: int
    kernel: int
    stride: int
    depth: int
    output: int
    normed: bool

    def tokens(self, frames: int) -> int:
        """Embeddings of a clip of so many frames."""
        heard = (frames - 1) // 2 + 1
        return (heard + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class TowerConfig:
    """What `VisionTower` reads of a vision_config, by its names. The published checkpoint has deepstack layers too,
    whose output its own code throws away."""

    depth: int
    hidden_size: int
    hidden_act: str
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    num_position_embeddings: int
    out_hidden_size: int
    deepstack_visual_indexes: tuple[int, ...] = ()


@dataclass(frozen=True)
class ImageEncoderConfig:
    """`tower`, and a projection of `depth` layers to `output`."""

    tower: TowerConfig
    depth: int
    output: int


def encoder_config(directory: str | Path) -> EncoderConfig:
    """Raises `CheckpointError`."""
    config = load_config(directory)
    try:
        audio, hidden = config["audio_config"], config["llm_config"]["hidden_size"]
        whisper = audio["whisper_encoder_config"]
        return EncoderConfig(
            bins=whisper["n_mels"],
            positions=whisper["n_ctx"],
            hidden=whisper["n_state"],
            heads=whisper["n_head"],
            layers=whisper["n_layer"],
            kernel=audio["ds_kernel_size"],
            stride=audio["ds_stride"],
            depth=config["mlp_depth"],
            output=hidden,
            normed=audio.get("norm_query_embeds", True),
        )
    except KeyError as error:
        raise CheckpointError(f"{directory}: config.json has no {error} for its audio encoder") from None


def image_encoder_config(directory: str | Path) -> ImageEncoderConfig:
    """Raises `CheckpointError`, also for the encoder of earlier models."""
    config = load_config(directory)
    try:
        vision = config["vision_config"]
        if (kind := vision.get("model_type")) != VISION_TYPE:
            raise CheckpointError(f"{directory}: vision_config's model_type is {kind!r}, not {VISION_TYPE!r}")
        tower = TowerConfig(
            depth=vision["depth"],
            hidden_size=vision["hidden_size"],
            hidden_act=vision["hidden_act"],
            intermediate_size=vision["intermediate_size"],
            num_heads=vision["num_heads"],
            in_channels=vision["in_channels"],
            patch_size=vision["patch_size"],
            temporal_patch_size=vision["temporal_patch_size"],
            spatial_merge_size=vision["spatial_merge_size"],
            num_position_embeddings=vision["num_position_embeddings"],
            out_hidden_size=vision["out_hidden_size"],
        )
        return ImageEncoderConfig(tower, config["mlp_depth"], config["llm_config"]["hidden_size"])
    except KeyError as error:
        raise CheckpointError(f"{directory}: config.json has no {error} for its vision encoder") from None
