"""The audio and the vision encoder, each alone: Hugging Face's modules with the weights of their own prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from omni_python.models.qwen3_omni.checkpoint import load_config, read_tensors
from omni_python.models.qwen3_omni.dummy import LoadFormat, built_dummy, is_dummy
from omni_python.models.qwen3_omni.payloads import AudioEmbeds, AudioInput, VisionEmbeds, VisionInput


class AudioEncoder:
    """Log-mel features to embeddings in the thinker's space; computes in `dtype`, hands out float32 on the CPU."""

    def __init__(
        self,
        model_path: str | Path,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        load_format: LoadFormat = "auto",
    ) -> None:
        from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeAudioEncoderConfig
        from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeAudioEncoder

        config = Qwen3OmniMoeAudioEncoderConfig(**load_config(model_path)["thinker_config"]["audio_config"])
        weights = _Weights(model_path, "thinker.audio_tower.", device, dtype, load_format)
        self._tower = _load_tower(Qwen3OmniMoeAudioEncoder, config, weights)
        self._device, self._dtype = device, dtype

    @torch.inference_mode()
    def __call__(self, audio: AudioInput) -> AudioEmbeds:
        """Encode all clips of a request; each attends to itself alone."""
        made = self._tower(
            audio.features.to(self._device, self._dtype), feature_lens=audio.lengths.to(self._device), return_dict=True
        )
        return AudioEmbeds(audio=made.last_hidden_state.float().cpu())


class VisionEncoder:
    """Patches to embeddings in the thinker's space; computes in `dtype`, hands out float32 on the CPU."""

    def __init__(
        self,
        model_path: str | Path,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        load_format: LoadFormat = "auto",
    ) -> None:
        from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeVisionEncoderConfig
        from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeVisionEncoder

        config = Qwen3OmniMoeVisionEncoderConfig(**load_config(model_path)["thinker_config"]["vision_config"])
        weights = _Weights(model_path, "thinker.visual.", device, dtype, load_format)
        self._tower = _load_tower(Qwen3OmniMoeVisionEncoder, config, weights)
        self._device, self._dtype = device, dtype

    @torch.inference_mode()
    def __call__(self, vision: VisionInput) -> VisionEmbeds:
        """Encode the images and the videos of a request; each picture attends to itself alone, a video step by step."""
        image, image_deepstack = self._encode(vision.image_pixels, vision.image_grids)
        video, video_deepstack = self._encode(vision.video_pixels, vision.video_grids)
        return VisionEmbeds(image, video, image_deepstack, video_deepstack)

    def _encode(
        self, pixels: torch.Tensor | None, grids: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        if pixels is None or grids is None:
            return None, []
        made = self._tower(pixels.to(self._device, self._dtype), grid_thw=grids.to(self._device), return_dict=True)
        return made.pooler_output.float().cpu(), [tap.float().cpu() for tap in made.deepstack_features]


class _Weights(NamedTuple):
    model_path: str | Path
    prefix: str
    device: str
    dtype: torch.dtype
    load_format: LoadFormat


def _load_tower(tower_class: Any, config: Any, weights: _Weights) -> Any:
    """One of transformers' encoder modules with the weights of its prefix, or random ones."""
    if is_dummy(weights.load_format):
        return built_dummy(lambda: tower_class._from_config(config), weights.dtype, weights.device)
    tower = tower_class(config)
    tower.load_state_dict(read_tensors(weights.model_path, weights.prefix, weights.dtype), assign=True)
    return tower.to(weights.device).eval()
