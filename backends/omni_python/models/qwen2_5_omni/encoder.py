"""The encoders of sound and pictures: transformers' own modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.modules import assign
from omni_python.models.qwen2_5_omni.payloads import MediaEmbeds, Question
from omni_python.proto.errors import OmniError


class MediaEncoder:
    """Question with features -> the same with embeddings in their place."""

    def __init__(self, path: str | Path, config: Any, dtype: torch.dtype, device: str) -> None:
        """`config` is the checkpoint's `Qwen2_5OmniConfig`. Raises `CheckpointError`."""
        from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as modules

        thinker = config.thinker_config
        self._device = device
        self._hear, self._see = (
            assign(
                kind._from_config(section, dtype=dtype, attn_implementation="sdpa"),
                read_tensors(path, f"thinker.{name}.", dtype),
                what,
            ).to(device)
            for kind, section, name, what in (
                (modules.Qwen2_5OmniAudioEncoder, thinker.audio_config, "audio_tower", "audio encoder"),
                (modules.Qwen2_5OmniVisionEncoder, thinker.vision_config, "visual", "vision encoder"),
            )
        )

    @torch.inference_mode()
    def __call__(self, question: Question) -> Question:
        features = question.features
        if features is None:
            raise OmniError("a question without media needs no encoder")
        embeds = MediaEmbeds(
            image=self._seen(features.image, features.image_grids),
            video=self._seen(features.video, features.video_grids),
        )
        if features.audio is not None and features.audio_lengths is not None:
            lengths = features.audio_lengths.to(self._device)
            embeds.audio = self._hear(features.audio.to(self._device), feature_lens=lengths).last_hidden_state
        return msgspec.structs.replace(question, features=None, embeds=embeds)

    def _seen(self, patches: torch.Tensor | None, grids: torch.Tensor | None) -> torch.Tensor | None:
        if patches is None or grids is None:
            return None
        made: torch.Tensor = self._see(patches.to(self._device), grid_thw=grids.to(self._device)).pooler_output
        return made
