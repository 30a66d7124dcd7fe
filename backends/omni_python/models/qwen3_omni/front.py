"""Factories of the stages before the thinker."""

from __future__ import annotations

from omni_python.models.qwen3_omni.dummy import LoadFormat
from omni_python.models.qwen3_omni.encoders import AudioEncoder, VisionEncoder
from omni_python.models.qwen3_omni.payloads import ThinkerInput
from omni_python.models.qwen3_omni.placement import Dtype, placement
from omni_python.models.qwen3_omni.preprocess import Preprocessor
from omni_python.scheduling.simple import SimpleScheduler


def create_preprocessing(model_path: str, speech: bool = True, workers: int = 1) -> SimpleScheduler:
    """OmniRequest -> Preprocessed. `speech`: whether the pipeline has the speech stages."""
    return SimpleScheduler(Preprocessor(model_path, speech), workers=workers)


def create_image_encoder(
    model_path: str, gpu_id: int | None = None, load_format: LoadFormat = "auto", dtype: Dtype = "auto"
) -> SimpleScheduler:
    """VisionInput -> VisionEmbeds, for images and videos."""
    torch_dtype, device = placement(gpu_id, dtype)
    return SimpleScheduler(VisionEncoder(model_path, device, torch_dtype, load_format))


def create_audio_encoder(
    model_path: str, gpu_id: int | None = None, load_format: LoadFormat = "auto", dtype: Dtype = "auto"
) -> SimpleScheduler:
    """AudioInput -> AudioEmbeds."""
    torch_dtype, device = placement(gpu_id, dtype)
    return SimpleScheduler(AudioEncoder(model_path, device, torch_dtype, load_format))


def create_aggregate() -> SimpleScheduler:
    """ThinkerInput -> the same: the work is the merge before it."""

    def compute(merged: ThinkerInput) -> ThinkerInput:
        return merged

    return SimpleScheduler(compute)
