"""Factories of the stages before the thinker."""

from __future__ import annotations

from typing import Any

from omni_python.models.loading.dummy import LoadFormat
from omni_python.models.loading.placement import Dtype, placement
from omni_python.models.preprocessing_stage import preprocessing_stage
from omni_python.models.qwen3_omni.encoders import DEFAULT_FRAMES, DEFAULT_PATCHES, AudioEncoder, VisionEncoder
from omni_python.models.qwen3_omni.limits import RequestLimits
from omni_python.models.qwen3_omni.payloads import ThinkerInput
from omni_python.models.qwen3_omni.preprocess import Preprocessor
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.proto.errors import InvalidArgument
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.device_memory import StageMemory, stage_memory
from omni_python.scheduling.memory_budget import encoder_pieces
from omni_python.scheduling.simple import SimpleScheduler


def create_preprocessing(
    model_path: str,
    speech: bool = True,
    workers: int = 1,
    media: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
) -> Scheduler:
    """OmniRequest -> Preprocessed. `speech`: whether the pipeline has the speech stages; `media`: a `MediaPolicy`;
    `limits`: `RequestLimits`."""
    loader = MediaLoader(MediaPolicy.of(media))
    return preprocessing_stage(Preprocessor(model_path, speech, loader, RequestLimits.of(limits)), loader, workers)


def create_image_encoder(
    model_path: str,
    gpu_id: int | None = None,
    max_batch_patches: int | None = None,
    max_batch: int = 8,
    load_format: LoadFormat = "auto",
    dtype: Dtype = "auto",
    total_gpu_memory_fraction: float | None = None,
) -> SimpleScheduler:
    """VisionInput -> VisionEmbeds, for images and videos: of at most `max_batch` requests that wait, together.

    `max_batch_patches` (16 x 16 pixels of a picture, or of two frames of a video) go through the tower at once; None
    takes as many as fit into the stage's share of its GPU's memory, without a share a default.
    """
    torch_dtype, device = placement(gpu_id, dtype)
    memory = stage_memory(gpu_id, total_gpu_memory_fraction)
    encoder = VisionEncoder(model_path, device, torch_dtype, load_format)
    sizes = (memory, memory.held() if memory else 0, encoder.bytes_per_patch)
    encoder.max_batch_patches = _fitting("image_encoder", max_batch_patches, DEFAULT_PATCHES, *sizes)
    return SimpleScheduler(compute_batch=encoder.encode, max_batch_size=max_batch)


def create_audio_encoder(
    model_path: str,
    gpu_id: int | None = None,
    max_batch_frames: int | None = None,
    max_batch: int = 8,
    load_format: LoadFormat = "auto",
    dtype: Dtype = "auto",
    total_gpu_memory_fraction: float | None = None,
) -> SimpleScheduler:
    """AudioInput -> AudioEmbeds, of at most `max_batch` requests that wait, together.

    `max_batch_frames` (100 a second) go through the tower at once; None as for the image encoder.
    """
    torch_dtype, device = placement(gpu_id, dtype)
    memory = stage_memory(gpu_id, total_gpu_memory_fraction)
    encoder = AudioEncoder(model_path, device, torch_dtype, load_format)
    sizes = (memory, memory.held() if memory else 0, encoder.bytes_per_frame)
    encoder.max_batch_frames = _fitting("audio_encoder", max_batch_frames, DEFAULT_FRAMES, *sizes)
    return SimpleScheduler(compute_batch=encoder.encode, max_batch_size=max_batch)


def _fitting(
    stage: str, asked: int | None, default: int, memory: StageMemory | None, weights: int, bytes_each: int
) -> int:
    """`asked` patches or frames; else as many as fit into `memory` beside the weights, or the default without it."""
    if asked is not None and asked < 1:
        raise InvalidArgument(f"{stage}: at least one patch or frame goes through the tower at once, not {asked}")
    if memory is None:
        return asked or default
    return encoder_pieces(stage, asked, memory.share, weights, bytes_each)


def create_aggregate() -> SimpleScheduler:
    """ThinkerInput -> the same: the work is the merge before it."""

    def compute(merged: ThinkerInput) -> ThinkerInput:
        return merged

    return SimpleScheduler(compute)
