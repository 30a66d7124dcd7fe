"""Factories of the stages from the thinker on. Without `gpu_id` they run on the CPU in float32, else in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import torch

from omni_python.models.qwen3_omni.checkpoint import load_json
from omni_python.models.qwen3_omni.code2wav import load_code2wav
from omni_python.models.qwen3_omni.decode import DecodeScheduler
from omni_python.models.qwen3_omni.detokenizer import TokenBytes, load_tokenizer
from omni_python.models.qwen3_omni.talker import Talker, load_talker
from omni_python.models.qwen3_omni.talker_prompt import TalkerTokens
from omni_python.models.qwen3_omni.talker_runner import TalkerModelRunner
from omni_python.models.qwen3_omni.thinker import Thinker, load_thinker
from omni_python.models.qwen3_omni.thinker_runner import MediaTokens, ThinkerModelRunner
from omni_python.models.qwen3_omni.weights import model_config
from omni_python.proto.errors import InvalidArgument
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.code2wav import Code2WavScheduler
from omni_python.scheduling.torch_scheduler import TorchScheduler

Engine = Literal["torch", "sglang"]
"""What runs an autoregressive stage: `TorchScheduler`, or `OmniScheduler` with the `sglang` extra installed."""


def create_thinker(
    model_path: str,
    gpu_id: int | None = None,
    max_running: int = 32,
    kv_tokens: int = 65536,
    prefill_tokens: int = 8192,
    decode_stage: str = "decode",
    talker_stage: str | None = "talker_ar",
    engine: Engine = "torch",
) -> Scheduler:
    """`talker_stage` None for a pipeline that answers in text alone."""
    config = model_config(model_path)
    thinker_config = config.thinker_config
    media = MediaTokens(thinker_config.image_token_id, thinker_config.video_token_id, thinker_config.audio_token_id)

    def runner(thinker: Thinker) -> ThinkerModelRunner:
        ends = eos_ids(model_path, config)
        accept_layer = config.talker_config.accept_hidden_layer
        texts = TokenBytes(load_tokenizer(model_path))
        return ThinkerModelRunner(thinker, media, ends, accept_layer, texts, decode_stage, talker_stage)

    if _is_sglang(engine):
        from omni_python.models.qwen3_omni import sglang_thinker

        sizes = (max_running, kv_tokens, prefill_tokens)
        return sglang_thinker.thinker_scheduler(
            model_path, config, gpu_id, sizes, media, runner, talker_stage is not None
        )
    thinker = load_thinker(model_path, config, *_placement(gpu_id))
    return TorchScheduler(runner(thinker), max_running, kv_tokens, prefill_tokens, name="thinker")


def create_talker(
    model_path: str,
    gpu_id: int | None = None,
    max_running: int = 32,
    kv_tokens: int = 131072,
    prefill_tokens: int = 8192,
    code2wav_stage: str = "code2wav",
    single_frames: int = 10,
    frames_per_chunk: int = 10,
    engine: Engine = "torch",
) -> Scheduler:
    config = model_config(model_path)

    def runner(talker: Talker) -> TalkerModelRunner:
        return TalkerModelRunner(talker, TalkerTokens.of(config), code2wav_stage, single_frames, frames_per_chunk)

    if _is_sglang(engine):
        from omni_python.models.qwen3_omni import sglang_talker

        sizes = (max_running, kv_tokens, prefill_tokens)
        return sglang_talker.talker_scheduler(model_path, config, gpu_id, sizes, runner)
    talker = load_talker(model_path, config, *_placement(gpu_id))
    return TorchScheduler(runner(talker), max_running, kv_tokens, prefill_tokens, name="talker")


def create_code2wav(
    model_path: str,
    gpu_id: int | None = None,
    chunk_frames: int = 10,
    left_context: int = 25,
    first_chunk_frames: int | None = None,
    max_batch: int = 8,
) -> Code2WavScheduler:
    vocoder = load_code2wav(model_path, model_config(model_path), *_placement(gpu_id))
    return Code2WavScheduler(vocoder, chunk_frames, left_context, first_chunk_frames, max_batch=max_batch)


def create_decode(model_path: str) -> DecodeScheduler:
    return DecodeScheduler(TokenBytes(load_tokenizer(model_path)))


def eos_ids(model_path: str | Path, config: Any) -> list[int]:
    """The tokens that end an answer: of generation_config.json where there is one, else the end of a turn."""
    if not (Path(model_path) / "generation_config.json").exists():
        return [config.im_end_token_id]
    given = load_json(model_path, "generation_config.json").get("eos_token_id", config.im_end_token_id)
    return list(given) if isinstance(given, list) else [given]


def _is_sglang(engine: str) -> bool:
    if engine not in get_args(Engine):
        raise InvalidArgument(f"engine {engine!r} is not known; valid: {', '.join(get_args(Engine))}")
    return engine == "sglang"


def _placement(gpu_id: int | None) -> tuple[torch.dtype, str]:
    return (torch.float32, "cpu") if gpu_id is None else (torch.bfloat16, f"cuda:{gpu_id}")
