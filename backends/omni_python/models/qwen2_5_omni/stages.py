"""Stage factories. Without `gpu_id` they run on the CPU in float32, else in bfloat16; the waveform always in float32.

`total_gpu_memory_fraction` is the stage's share of its GPU's memory. `kv_tokens` None takes as much KV cache as fits
into it; without a share, or on the CPU, a default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from omni_python.models.loading.checkpoint import CheckpointError, load_json
from omni_python.models.loading.kv_size import KVNeeds
from omni_python.models.loading.placement import Dtype, on_own_stream, placement
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.media.placeholders import MediaTokens
from omni_python.models.preprocessing_stage import preprocessing_stage
from omni_python.models.qwen2_5_omni.architecture import decoder_config, model_config
from omni_python.models.qwen2_5_omni.encoder import MediaEncoder
from omni_python.models.qwen2_5_omni.preprocess import Preprocessor
from omni_python.models.qwen2_5_omni.talker import TalkerTokens, load_talker, thinker_embeddings
from omni_python.models.qwen2_5_omni.talker_runner import Qwen25TalkerRunner, SpeechStates
from omni_python.models.qwen2_5_omni.thinker import load_thinker
from omni_python.models.qwen2_5_omni.thinker_runner import Qwen25ThinkerRunner
from omni_python.models.qwen2_5_omni.token2wav import Token2WavScheduler, load_token2wav
from omni_python.models.qwen2_5_omni.voices import load_voices
from omni_python.models.text.decode import DecodeScheduler
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.preprocessing.image import MAX_PIXELS
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.device_memory import stage_memory
from omni_python.scheduling.simple import SimpleScheduler
from omni_python.scheduling.torch_scheduler import TorchScheduler


def create_preprocessing(
    model_path: str,
    workers: int = 1,
    media: dict[str, Any] | None = None,
    audio_seconds: float = 300.0,
    image_pixels: int = MAX_PIXELS,
) -> Scheduler:
    """OmniRequest -> Question. `media`: a `MediaPolicy`; `audio_seconds` and `image_pixels` bound one request."""
    loader = MediaLoader(MediaPolicy.of(media))
    preprocessor = Preprocessor(model_path, loader, audio_seconds, image_pixels)
    return preprocessing_stage(preprocessor, loader, workers)


def create_media_encoder(model_path: str, gpu_id: int | None = None, dtype: Dtype = "auto") -> SimpleScheduler:
    """Question with features -> Question with embeddings."""
    return SimpleScheduler(MediaEncoder(model_path, model_config(model_path), *placement(gpu_id, dtype)))


def create_thinker(
    model_path: str,
    gpu_id: int | None = None,
    max_running: int = 32,
    kv_tokens: int | None = None,
    prefill_tokens: int = 8192,
    decode_stage: str = "decode",
    talker_stage: str | None = "talker",
    dtype: Dtype = "auto",
    total_gpu_memory_fraction: float | None = None,
) -> TorchScheduler[Any]:
    """Question -> ThinkerResult, tokens and states streamed. `talker_stage` None answers in text alone."""
    config = model_config(model_path)
    torch_dtype, device = placement(gpu_id, dtype)
    text = config.thinker_config.text_config
    memory = stage_memory(gpu_id, total_gpu_memory_fraction)
    thinker = load_thinker(model_path, config, torch_dtype, device)
    limits = (text.max_position_embeddings, max_running, prefill_tokens, 65536)
    needs = KVNeeds("thinker", decoder_config(text), torch_dtype, *limits)
    tokens = needs.tokens(kv_tokens, memory)
    texts = TokenBytes(load_tokenizer(model_path))
    section = config.thinker_config
    media = MediaTokens(section.image_token_index, section.video_token_index, section.audio_token_index)
    runner = Qwen25ThinkerRunner(thinker, media, _ends(model_path, config), texts, decode_stage, talker_stage)
    return on_own_stream(TorchScheduler(runner, max_running, tokens, prefill_tokens, name="thinker"), device, -1)


def create_talker(
    model_path: str,
    gpu_id: int | None = None,
    max_running: int = 32,
    kv_tokens: int | None = None,
    prefill_tokens: int = 8192,
    token2wav_stage: str = "token2wav",
    codes_per_chunk: int = 12,
    dtype: Dtype = "auto",
    total_gpu_memory_fraction: float | None = None,
) -> TorchScheduler[Any]:
    """HeardPrompt and HeardTokens -> SpeechCodes, streamed."""
    config = model_config(model_path)
    torch_dtype, device = placement(gpu_id, dtype)
    section = config.talker_config
    memory = stage_memory(gpu_id, total_gpu_memory_fraction)
    talker = load_talker(model_path, config, torch_dtype, device)
    states = _speech_states(model_path, section, torch_dtype, device)
    limits = (section.max_position_embeddings, max_running, prefill_tokens, 131072)
    needs = KVNeeds("talker", decoder_config(section), torch_dtype, *limits)
    tokens = needs.tokens(kv_tokens, memory)
    runner = Qwen25TalkerRunner(talker, TalkerTokens.of(config), states, token2wav_stage, codes_per_chunk)
    return on_own_stream(TorchScheduler(runner, max_running, tokens, prefill_tokens, name="talker"), device, -1)


def create_token2wav(
    model_path: str,
    gpu_id: int | None = None,
    first_blocks: int = 1,
    chunk_blocks: int = 4,
    context_blocks: int = 2,
    crossfade_samples: int = 240,
    steps: int = 10,
    guidance: float = 0.5,
) -> Token2WavScheduler:
    """SpeechCodes -> speech. A block is the published model's 12 codes, 0.24 s; a streamed answer begins once the
    first `first_blocks` and one more are there."""
    _, device = placement(gpu_id, "float32")
    vocoder = load_token2wav(model_path, model_config(model_path), device, steps=steps, guidance=guidance)
    sizes = (first_blocks, chunk_blocks, context_blocks, crossfade_samples)
    return on_own_stream(Token2WavScheduler(vocoder, load_voices(model_path), *sizes), device, 0)


def create_decode(model_path: str) -> DecodeScheduler:
    """AnswerTokens -> text."""
    return DecodeScheduler(TokenBytes(load_tokenizer(model_path)))


def _speech_states(path: str, section: Any, dtype: torch.dtype, device: str) -> SpeechStates:
    voices = load_voices(path)
    ids = [voice.bos_token for voice in voices.values()]
    ids += [section.tts_text_end_token_id, section.tts_text_pad_token_id]
    *begins, end, pad = thinker_embeddings(path, ids, dtype, device)
    return SpeechStates(dict(zip(voices, begins, strict=True)), end, pad)


def _ends(path: str | Path, config: Any) -> list[int]:
    """The tokens that end an answer, as Hugging Face's generation finds them."""
    try:
        given = load_json(path, "generation_config.json").get("eos_token_id")
    except CheckpointError:
        given = None
    if given is None:
        given = getattr(config.thinker_config, "eos_token_id", None)
    if given is None:
        given = config.thinker_config.text_config.eos_token_id
    if given is None:
        raise CheckpointError(
            f"{path}: neither generation_config.json nor config.json tells which token ends an answer"
        )
    return list(given) if isinstance(given, list) else [given]
