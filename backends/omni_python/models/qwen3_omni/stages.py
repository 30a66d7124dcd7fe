"""Factories of the stages from the thinker on. Without `gpu_id` they run on the CPU in float32, else in bfloat16.

`total_gpu_memory_fraction` is the stage's share of its GPU's memory. `kv_tokens` None takes as much KV cache as fits
into it; without a share, or on the CPU, a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import nn

from omni_python.layers.decoder import DecoderConfig
from omni_python.models.loading.checkpoint import load_json
from omni_python.models.loading.dummy import LoadFormat, is_dummy
from omni_python.models.loading.kernels import Kernels, captured_rows
from omni_python.models.loading.kv_size import KVNeeds, parameter_bytes
from omni_python.models.loading.modules import on_meta
from omni_python.models.loading.placement import Dtype, on_own_stream, placement
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.media.placeholders import MediaTokens
from omni_python.models.qwen3_omni.architecture import model_config
from omni_python.models.qwen3_omni.code2wav import load_code2wav
from omni_python.models.qwen3_omni.limits import SpeechGuard
from omni_python.models.qwen3_omni.talker import Talker, load_talker
from omni_python.models.qwen3_omni.talker_prompt import TalkerTokens
from omni_python.models.qwen3_omni.talker_runner import TalkerModelRunner
from omni_python.models.qwen3_omni.thinker import Thinker, load_thinker
from omni_python.models.qwen3_omni.thinker_runner import ThinkerModelRunner
from omni_python.models.qwen3_omni.weights import decoder_config
from omni_python.models.text.decode import DecodeScheduler
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.proto.errors import InvalidArgument
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.code2wav import Code2WavScheduler
from omni_python.scheduling.device_memory import stage_memory
from omni_python.scheduling.torch_scheduler import TorchScheduler
from omni_python.sglang_engine.followers import RankGroup

Engine = Literal["torch", "sglang"]
"""What runs an autoregressive stage: `TorchScheduler`, or `OmniScheduler` with the `sglang` extra installed."""

Runner = TypeVar("Runner", bound=TalkerModelRunner)


def create_thinker(
    model_path: str,
    gpu_id: int | None = None,
    max_running: int = 32,
    kv_tokens: int | None = None,
    prefill_tokens: int = 8192,
    decode_stage: str = "decode",
    talker_stage: str | None = "talker_ar",
    engine: Engine = "torch",
    kernels: Kernels = "auto",
    load_format: LoadFormat = "auto",
    dtype: Dtype = "auto",
    total_gpu_memory_fraction: float | None = None,
    tp_size: int = 1,
    gpu_ids: Sequence[int] = (),
    process: str = "thinker",
) -> Scheduler:
    """`talker_stage` None for a pipeline that answers in text alone. With `tp_size` above 1, in processes named after
    `process`, each on one of `gpu_ids`."""
    config = model_config(model_path)
    thinker_config = config.thinker_config
    media = MediaTokens(thinker_config.image_token_id, thinker_config.video_token_id, thinker_config.audio_token_id)

    def runner(thinker: Thinker, fused_rows: int = 0) -> ThinkerModelRunner:
        ends = eos_ids(model_path, config)
        accept_layer = config.talker_config.accept_hidden_layer
        texts = TokenBytes(load_tokenizer(model_path))
        deepstack_layers = len(thinker_config.vision_config.deepstack_visual_indexes)
        return ThinkerModelRunner(
            thinker, media, ends, accept_layer, texts, decode_stage, talker_stage, fused_rows, deepstack_layers
        )

    on_sglang = _is_sglang(engine, kernels)
    ranks = _ranks(engine, tp_size, process, gpu_ids)
    torch_dtype, device = placement(gpu_id, dtype)
    text = thinker_config.text_config
    limits = (text.max_position_embeddings, max_running, prefill_tokens, 65536)
    needs = KVNeeds("thinker", _shard(decoder_config(text), tp_size), torch_dtype, *limits)
    memory = stage_memory(gpu_id, total_gpu_memory_fraction)
    if on_sglang:
        from omni_python.models.qwen3_omni import sglang_thinker

        if kernels == "fused":
            raise InvalidArgument('kernels "fused" are for the thinker on engine "torch"; SGLang brings its own')
        with on_meta():
            weights = _rank_bytes(Thinker(text), text, torch_dtype, tp_size)
        if talker_stage is not None:  # the tapped hidden state
            needs = replace(needs, kept_per_token=text.hidden_size * torch_dtype.itemsize)
        sizes = (max_running, needs.tokens(kv_tokens, memory, weights), prefill_tokens)
        speech, dummy = talker_stage is not None, is_dummy(load_format)
        return sglang_thinker.thinker_scheduler(
            model_path, config, gpu_id, torch_dtype, dummy, sizes, media, runner, speech, ranks
        )
    thinker = load_thinker(model_path, config, torch_dtype, device, load_format)
    tokens = needs.tokens(kv_tokens, memory)
    fused_rows = captured_rows(kernels, "thinker", [thinker.model], max_running)
    scheduler = TorchScheduler(runner(thinker, fused_rows), max_running, tokens, prefill_tokens, name="thinker")
    return on_own_stream(scheduler, device, priority=-1)


def create_talker(
    model_path: str,
    gpu_id: int | None = None,
    max_running: int = 32,
    kv_tokens: int | None = None,
    prefill_tokens: int = 8192,
    code2wav_stage: str = "code2wav",
    single_frames: int = 10,
    frames_per_chunk: int = 10,
    engine: Engine = "torch",
    kernels: Kernels = "auto",
    load_format: LoadFormat = "auto",
    dtype: Dtype = "auto",
    total_gpu_memory_fraction: float | None = None,
    tp_size: int = 1,
    gpu_ids: Sequence[int] = (),
    process: str = "talker_ar",
    speech_guard: dict[str, Any] | None = None,
) -> Scheduler:
    """`tp_size`, `gpu_ids` and `process` as for the thinker; the code predictor runs on rank 0 alone. `speech_guard`: a
    `SpeechGuard`'s fields."""
    config = model_config(model_path)
    guard = SpeechGuard.of(speech_guard)

    def runner(kind: type[Runner], talker: Talker) -> Runner:
        fused_rows = captured_rows(kernels, "talker", [talker.model, talker.code_predictor.model], max_running)
        sizes = (single_frames, frames_per_chunk, fused_rows)
        return kind(talker, TalkerTokens.of(config), code2wav_stage, *sizes, guard=guard)

    on_sglang = _is_sglang(engine, kernels)
    ranks = _ranks(engine, tp_size, process, gpu_ids)
    torch_dtype, device = placement(gpu_id, dtype)
    text = config.talker_config.text_config
    limits = (text.max_position_embeddings, max_running, prefill_tokens, 131072)
    needs = KVNeeds("talker", _shard(decoder_config(text), tp_size), torch_dtype, *limits)
    memory = stage_memory(gpu_id, total_gpu_memory_fraction)
    if on_sglang:
        from omni_python.models.qwen3_omni import sglang_talker
        from omni_python.models.qwen3_omni.sglang_talker_runner import SGLangTalkerRunner

        with on_meta():
            made = Talker(config.talker_config, config.thinker_config.text_config.vocab_size)
        weights = _rank_bytes(made, text, torch_dtype, tp_size)
        sizes = (max_running, needs.tokens(kv_tokens, memory, weights), prefill_tokens)
        make_runner = partial(runner, SGLangTalkerRunner)
        return sglang_talker.talker_scheduler(
            model_path, config, gpu_id, torch_dtype, load_format, sizes, make_runner, ranks
        )
    talker = load_talker(model_path, config, torch_dtype, device, load_format)
    tokens = needs.tokens(kv_tokens, memory)
    scheduler = TorchScheduler(runner(TalkerModelRunner, talker), max_running, tokens, prefill_tokens, name="talker")
    return on_own_stream(scheduler, device, priority=-1)


def create_code2wav(
    model_path: str,
    gpu_id: int | None = None,
    chunk_frames: int = 10,
    left_context: int = 25,
    first_chunk_frames: int | None = None,
    max_batch: int = 8,
    load_format: LoadFormat = "auto",
    dtype: Dtype = "auto",
) -> Code2WavScheduler:
    torch_dtype, device = placement(gpu_id, dtype)
    vocoder = load_code2wav(model_path, model_config(model_path), torch_dtype, device, load_format)
    scheduler = Code2WavScheduler(vocoder, chunk_frames, left_context, first_chunk_frames, max_batch=max_batch)
    if gpu_id is not None:
        vocoder.prepare(scheduler.windows, max_batch)
    return on_own_stream(scheduler, device, priority=0)


def create_decode(model_path: str) -> DecodeScheduler:
    return DecodeScheduler(TokenBytes(load_tokenizer(model_path)))


def eos_ids(model_path: str | Path, config: Any) -> list[int]:
    """The tokens that end an answer: of generation_config.json where there is one, else the end of a turn."""
    if not (Path(model_path) / "generation_config.json").exists():
        return [config.im_end_token_id]
    given = load_json(model_path, "generation_config.json").get("eos_token_id", config.im_end_token_id)
    return list(given) if isinstance(given, list) else [given]


def _is_sglang(engine: str, kernels: str) -> bool:
    for what, given, valid in (("engine", engine, Engine), ("kernels", kernels, Kernels)):
        if given not in get_args(valid):
            raise InvalidArgument(f"{what} {given!r} is not known; valid: {', '.join(get_args(valid))}")
    return engine == "sglang"


def _ranks(engine: str, tp_size: int, process: str, gpu_ids: Sequence[int]) -> RankGroup | None:
    """The group of a tensor-parallel stage; None for a stage in one process."""
    if tp_size == 1:
        return None
    if engine == "torch":
        raise InvalidArgument(f'tp_size {tp_size} needs engine "sglang"; engine "torch" runs in one process')
    return RankGroup(process, tp_size, tuple(gpu_ids))


def _shard(decoder: DecoderConfig, tp_size: int) -> DecoderConfig:
    """What one rank keeps in its KV cache."""
    return replace(decoder, kv_heads=max(1, decoder.kv_heads // tp_size))


def _rank_bytes(module: nn.Module, text: Any, dtype: torch.dtype, tp_size: int) -> int:
    """Bytes of weights on rank 0, which has whole embeddings and heads beside its shard."""
    whole = 2 * text.vocab_size * text.hidden_size * dtype.itemsize if tp_size > 1 else 0
    return parameter_bytes(module, dtype) // tp_size + whole
