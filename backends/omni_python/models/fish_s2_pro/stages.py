"""Stage factories. Without `gpu_id` they run on the CPU, in float32."""

from __future__ import annotations

from typing import Any

from omni_python.models.fish_s2_pro.architecture import model_config
from omni_python.models.fish_s2_pro.codec_checkpoint import load_decoder
from omni_python.models.fish_s2_pro.dual_ar import load_dual_ar
from omni_python.models.fish_s2_pro.engine import SpeechModelRunner
from omni_python.models.fish_s2_pro.preprocess import Preprocessor
from omni_python.models.fish_s2_pro.vocoder import S2Vocoder
from omni_python.models.loading.dummy import LoadFormat
from omni_python.models.loading.kernels import Kernels, captured_rows
from omni_python.models.loading.kv_size import KVNeeds
from omni_python.models.loading.placement import Dtype, on_own_stream, placement
from omni_python.models.preprocessing_stage import preprocessing_stage
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.code2wav import Code2WavScheduler
from omni_python.scheduling.device_memory import stage_memory
from omni_python.scheduling.torch_scheduler import TorchScheduler


def create_preprocessing(
    model_path: str,
    gpu_id: int | None = None,
    workers: int = 1,
    media: dict[str, Any] | None = None,
    reference_seconds: float = 60.0,
) -> Scheduler:
    """OmniRequest -> SpeechPrompt. `media`: a `MediaPolicy`; at most `reference_seconds` of a voice are encoded."""
    loader = MediaLoader(MediaPolicy.of(media))
    device = "cpu" if gpu_id is None else f"cuda:{gpu_id}"
    return preprocessing_stage(Preprocessor(model_path, loader, device, reference_seconds), loader, workers)


def create_tts_engine(
    model_path: str,
    gpu_id: int | None = None,
    max_running: int = 32,
    kv_tokens: int | None = None,
    prefill_tokens: int = 8192,
    vocoder_stage: str = "vocoder",
    frames_per_chunk: int = 5,
    load_format: LoadFormat = "auto",
    dtype: Dtype = "auto",
    kernels: Kernels = "auto",
    total_gpu_memory_fraction: float | None = None,
) -> TorchScheduler[Any]:
    """SpeechPrompt -> SpeechFrames, streamed. `kv_tokens` None takes as much KV cache as fits into the stage's share of
    its GPU's memory; without a share, or on the CPU, a default."""
    config = model_config(model_path)
    torch_dtype, device = placement(gpu_id, dtype)
    memory = stage_memory(gpu_id, total_gpu_memory_fraction)
    model = load_dual_ar(model_path, config, torch_dtype, device, load_format)
    needs = KVNeeds("tts_engine", config.trunk, torch_dtype, config.context, max_running, prefill_tokens, 65536)
    tokens = needs.tokens(kv_tokens, memory)
    fused_rows = captured_rows(kernels, "tts_engine", [model.trunk, model.head.model], max_running)
    runner = SpeechModelRunner(model, vocoder_stage, frames_per_chunk, max_running, fused_rows)
    scheduler = TorchScheduler(runner, max_running, tokens, prefill_tokens, name="tts_engine")
    return on_own_stream(scheduler, device, priority=-1)


def create_vocoder(
    model_path: str,
    gpu_id: int | None = None,
    first_chunk_frames: int = 40,
    chunk_frames: int = 45,
    left_context: int | None = None,
    crossfade_samples: int = 0,
    max_batch: int = 8,
    load_format: LoadFormat = "auto",
    dtype: Dtype = "float32",
) -> Code2WavScheduler:
    """SpeechFrames -> speech, on a GPU too in float32, as SGLang-Omni does.

    `left_context` None takes as much as a sample depends on, so windows join without a seam. Less is cheaper where
    speeches are long; 20 with `crossfade_samples` 512 is what SGLang-Omni takes.
    """
    torch_dtype, device = placement(gpu_id, dtype)
    vocoder = S2Vocoder(load_decoder(model_path, torch_dtype, device, load_format))
    scheduler = Code2WavScheduler(
        vocoder,
        chunk_frames,
        vocoder.receptive_frames if left_context is None else left_context,
        first_chunk_frames,
        max_batch=max_batch,
        crossfade_samples=crossfade_samples,
        name="vocoder",
    )
    return on_own_stream(scheduler, device)
