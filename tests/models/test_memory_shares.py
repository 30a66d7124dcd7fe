"""The shares that the pipeline declares hold the published model on one card of 80 GB; what stages make of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_python.config.memory import MEMORY_FRACTION, memory_shares
from omni_python.models.loading.kv_size import KVNeeds, parameter_bytes
from omni_python.models.qwen3_omni import encoders, front, stages
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.models.qwen3_omni.talker import Talker
from omni_python.models.qwen3_omni.thinker import Thinker
from omni_python.models.qwen3_omni.weights import decoder_config
from omni_python.proto.errors import InvalidArgument
from omni_python.scheduling.device_memory import StageMemory
from omni_python.scheduling.memory_budget import CONTEXT_BYTES, encoder_pieces
from tests.models.tiny_model import checkpoint

CARD = int(79.1 * 2**30)
"""Bytes that CUDA tells of an H100 of 80 GB."""


def memory(fraction: float, first: bool = True) -> StageMemory:
    """As a stage on a card of 80 GB would find it; the first stage of a process pays for its context."""
    made = object.__new__(StageMemory)
    made.share = int(fraction * CARD) - CONTEXT_BYTES * first
    return made


def placed() -> Qwen3OmniSpeechPipelineConfig:
    """The pipeline with every stage that declares a share on one GPU."""
    declared = Qwen3OmniSpeechPipelineConfig.model_fields["stages"].default
    on_gpu = [s.model_copy(update={"gpu": 0 if MEMORY_FRACTION in s.factory_args else None}) for s in declared]
    return Qwen3OmniSpeechPipelineConfig(model_path="m", stages=on_gpu)


def fraction_of(stage: str) -> float:
    return next(share.fraction or 0.0 for share in memory_shares(placed())[0] if share.stage == stage)


@pytest.fixture(scope="module")
def published() -> Any:
    from transformers import Qwen3OmniMoeConfig

    return Qwen3OmniMoeConfig.from_dict(json.loads((Path(__file__).parent / "published_config.json").read_text()))


def test_the_published_thinker_and_talker_fit_with_a_cache(published: Any) -> None:
    vocabulary = published.thinker_config.text_config.vocab_size
    with torch.device("meta"):
        thinker, talker = Thinker(published.thinker_config.text_config), Talker(published.talker_config, vocabulary)
    for stage, text, module, share in (
        ("thinker", published.thinker_config.text_config, thinker, fraction_of("thinker")),
        ("talker", published.talker_config.text_config, talker, fraction_of("talker_ar")),
    ):
        needs = KVNeeds(stage, decoder_config(text), torch.bfloat16, 65536, 32, 8192, default_tokens=1)
        weights = parameter_bytes(module, torch.bfloat16)
        tokens = needs.tokens(None, memory(share), weights)
        assert 16384 < tokens < 131072
        assert needs.tokens(tokens, memory(share), weights) == tokens
        with pytest.raises(InvalidArgument, match=f"{stage}: .* largest kv_tokens that fits is {tokens};"):
            needs.tokens(tokens + 1, memory(share), weights)


def test_a_cache_is_no_larger_than_can_be_used(published: Any) -> None:
    decoder = decoder_config(published.talker_config.text_config)
    needs = KVNeeds("talker", decoder, torch.bfloat16, 4096, 8, 8192, default_tokens=1)
    assert needs.tokens(None, memory(1.0), 0) == 8 * 4096


def test_the_published_encoders_fit_with_several_steps_of_video(published: Any) -> None:
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as hf

    vision, audio = published.thinker_config.vision_config, published.thinker_config.audio_config
    with torch.device("meta"):
        towers = hf.Qwen3OmniMoeVisionEncoder._from_config(vision), hf.Qwen3OmniMoeAudioEncoder._from_config(audio)
    held = [parameter_bytes(tower, torch.bfloat16) for tower in towers]
    share = memory(fraction_of("image_encoder")).share
    patches = encoder_pieces("image_encoder", None, share, held[0], encoders._bytes_per_patch(vision, 2))
    assert patches > 5 * 3072
    share = memory(fraction_of("audio_encoder"), first=False).share
    assert encoder_pieces("audio_encoder", None, share, held[1], encoders._bytes_per_frame(audio, 2)) > 6000


def peak(work: Callable[[], Any]) -> int:
    """Bytes that `work` allocates at most at once, as torch's profiler counts them."""
    with torch.inference_mode(), torch.profiler.profile(profile_memory=True, acc_events=True) as seen:
        kept = work()
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    del kept
    return most


def test_what_is_reckoned_for_a_patch_and_a_frame_is_enough(published: Any) -> None:
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as hf

    vision, audio = copy.deepcopy((published.thinker_config.vision_config, published.thinker_config.audio_config))
    vision.hidden_size, vision.intermediate_size, vision.num_heads, vision.out_hidden_size = 288, 1076, 4, 512
    vision.depth, vision.deepstack_visual_indexes, audio.encoder_layers = 3, [0, 1], 1
    tower = hf.Qwen3OmniMoeVisionEncoder._from_config(vision).to(torch.bfloat16).eval()
    grid = torch.tensor([[2, 16, 24]])
    patches = int(grid.prod())
    pixels = torch.randn(patches, 1536, dtype=torch.bfloat16)
    took = peak(lambda: tower(pixels, grid_thw=grid, return_dict=True))
    reckoned = encoders._bytes_per_patch(vision, 2)
    assert 0.5 * reckoned < took / patches < reckoned
    tower = hf.Qwen3OmniMoeAudioEncoder._from_config(audio).to(torch.bfloat16).eval()
    sound = torch.randn(128, 300, dtype=torch.bfloat16)
    took = peak(lambda: tower(sound, feature_lens=torch.tensor([300]), return_dict=True))
    reckoned = encoders._bytes_per_frame(audio, 2)
    slack = 1.0 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else 1.25  # else it copies to float32, as no GPU does
    assert 0.5 * reckoned < took / 300 < slack * reckoned


def test_a_stage_on_the_cpu_has_defaults_whatever_its_share() -> None:
    scheduler = stages.create_thinker(str(checkpoint()), total_gpu_memory_fraction=0.5)
    assert scheduler._pool.num_pages * 16 == 65536  # type: ignore[attr-defined]
    encode = front.create_image_encoder(str(checkpoint()), total_gpu_memory_fraction=0.5)._compute_batch
    assert encode.__self__.max_batch_patches == encoders.DEFAULT_PATCHES  # type: ignore[union-attr]
    encode = front.create_audio_encoder(str(checkpoint()), max_batch_frames=1234)._compute_batch
    assert encode.__self__.max_batch_frames == 1234  # type: ignore[union-attr]
    with pytest.raises(InvalidArgument, match="image_encoder: at least one patch"):
        front.create_image_encoder(str(checkpoint()), max_batch_patches=0)
