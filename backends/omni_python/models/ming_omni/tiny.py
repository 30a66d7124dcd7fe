"""A tiny Ming-Omni checkpoint with random weights, the same on every machine, in the published checkpoint's format.

It has every part that the pipelines read, one voice, and the deepstack mergers, which nothing reads; of the embedding
of speakers and the image generation it has nothing. Constants that shape the stream are the published ones: 44.1 kHz,
882 samples a frame, 4 frames a latent, 4 latents a step with 32 before them, 10 steps of the flow; patches of 16
pixels, of which 2 x 2 are a token. Weights come from numpy's PCG64, one stream a tensor, seeded by the tensor's name.

The configs are those of Ming-flash-omni-2.0 as its code carries them, with other sizes; no header of its tensors could
be read, so their names are those that its code would give them.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_python.models.loading.byte_tokenizer import BYTES, byte_tokenizer
from omni_python.models.loading.tiny import named_noise
from omni_python.models.ming_omni.architecture import MODEL_TYPE
from omni_python.models.ming_omni.encoder_architecture import VISION_TYPE
from omni_python.models.ming_omni.tensor_shapes import (
    encoder_shapes,
    talker_shapes,
    thinker_shapes,
    vae_shapes,
    vision_shapes,
)
from omni_python.proto.wav import wav_file

HEAD_SCALE = 3.0
"""On what the logits are made of, so greedy choices have clear margins."""

_SPECIAL = (
    "<|startoftext|>",
    "<|endoftext|>",
    "[CLS]",
    "[gMASK]",
    "<role>",
    "</role>",
    "<|role_end|>",
    "<image>",
    "<imagePatch>",
    "</image>",
    "<audio>",
    "<audioPatch>",
    "</audio>",
    "<video>",
    "</video>",
    "<framePatch>",
)
_TALKER_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_pad|>",
    "<|vision_end|>",
    "<audio>",
    "<audioPatch>",
    "</audio>",
)


def build(out: str | Path, seed: int = 0) -> str:
    """Write a checkpoint directory to `out` (created if missing) and return the SHA-256 of its weights."""
    from safetensors.torch import save

    out = Path(out)
    talker, llm, vae = out / "talker", out / "talker" / "llm", out / "talker" / "vae"
    whole = tiny_config()
    thinker = thinker_shapes(whole["llm_config"]) | encoder_shapes(whole) | vision_shapes(whole)
    digest = hashlib.sha256()
    for folder, config, shapes in (
        (out, whole, thinker),
        (talker, tiny_talker(), talker_shapes(tiny_talker(), tiny_llm())),
        (llm, tiny_llm(), {}),
        (vae, tiny_vae(), vae_shapes(tiny_vae())),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        tensors = {name: torch.from_numpy(_random(name, shape, seed)) for name, shape in sorted(shapes.items())}
        if tensors:
            (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        for name, tensor in tensors.items():
            digest.update(f"{name}|{list(tensor.shape)}|".encode() + tensor.numpy().tobytes())
    _voice(talker)
    (out / "preprocessor_config.json").write_text(json.dumps(tiny_preprocessor(), indent=2) + "\n", "utf-8")
    byte_tokenizer(_SPECIAL).save(str(out / "tokenizer.json"))
    byte_tokenizer(_TALKER_SPECIAL).save(str(llm / "tokenizer.json"))
    return digest.hexdigest()


def _voice(talker: Path) -> None:
    """One voice: half a second of a falling tone."""
    (talker / "data").mkdir(exist_ok=True)
    times = np.arange(22050) / 44100
    tone = 0.3 * np.sin(2 * np.pi * (300 - 150 * times) * times)
    (talker / "data" / "voice.wav").write_bytes(wav_file(tone.astype(np.float32), 44100))
    told = {"DB30": {"prompt_text": "A tone that falls.", "prompt_wav_path": "data/voice.wav"}}
    (talker / "data" / "voice_name.json").write_text(json.dumps(told, indent=2) + "\n", "utf-8")


def tiny_config() -> dict[str, Any]:
    """The config.json: the published one's fields."""
    return {
        "architectures": ["BailingMM2NativeForConditionalGeneration"],
        "model_type": MODEL_TYPE,
        "mlp_depth": 2,
        "audio_config": {
            "ds_kernel_size": 3,
            "ds_stride": 2,
            "norm_query_embeds": True,
            "whisper_encoder_config": {"n_ctx": 1500, "n_head": 4, "n_layer": 2, "n_mels": 128, "n_state": 64},
        },
        "llm_config": {
            "eos_token_id": BYTES + _SPECIAL.index("<|role_end|>"),
            "first_k_dense_replace": 1,
            "head_dim": 16,
            "hidden_act": "silu",
            "hidden_size": 64,
            "image_patch_token": BYTES + _SPECIAL.index("<imagePatch>"),
            "image_start_token": BYTES + _SPECIAL.index("<image>"),
            "intermediate_size": 96,
            "max_position_embeddings": 4096,
            "model_type": "bailing_moe_v2",
            "moe_intermediate_size": 32,
            "n_group": 4,
            "num_attention_heads": 4,
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "num_shared_experts": 1,
            "pad_token_id": BYTES + _SPECIAL.index("<|endoftext|>"),
            "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {"type": "video_rope", "factor": None, "mrope_section": [1, 2, 1]},
            "rope_theta": 2400000.0,
            "routed_scaling_factor": 2.5,
            "router_type": "MultiRouter",
            "tie_word_embeddings": False,
            "topk_group": 2,
            "use_bias": False,
            "use_expert_bias": True,
            "use_qk_norm": True,
            "use_qkv_bias": False,
            "video_patch_token": BYTES + _SPECIAL.index("<framePatch>"),
            "video_start_token": BYTES + _SPECIAL.index("<video>"),
            "vocab_size": BYTES + len(_SPECIAL),
        },
        "vision_config": {
            "deepstack_visual_indexes": [0],
            "depth": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 32,
            "in_channels": 3,
            "intermediate_size": 48,
            "model_type": VISION_TYPE,
            "num_heads": 2,
            "num_position_embeddings": 25,
            "out_hidden_size": 48,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


def tiny_preprocessor() -> dict[str, Any]:
    """The preprocessor_config.json: of the published one what is of pictures."""
    return {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "max_pixels": 16777216,
        "merge_size": 2,
        "min_pixels": 4096,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "use_interleaved_frame_timestamp": True,
    }


def tiny_talker() -> dict[str, Any]:
    """The config.json of the folder talker."""
    blocks = {"depth": 2, "hidden_size": 64, "in_channels": 64, "mlp_ratio": 2.0, "num_heads": 4}
    return {
        "steps": 10,
        "patch_size": 4,
        "history_patch_size": 32,
        "cfg_strength": 2.0,
        "flowmodel": {**blocks, "dropout": 0.0, "qk_norm": "rms_norm"},
        "aggregator": {**blocks, "dropout": 0.1},
    }


def tiny_llm() -> dict[str, Any]:
    """The config.json of the folder talker/llm."""
    return {
        **_qwen2(64, 2, 96),
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "vocab_size": BYTES + len(_TALKER_SPECIAL),
    }


def tiny_vae() -> dict[str, Any]:
    """The config.json of the folder talker/vae."""
    windowed = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0, "vocab_size": 1}
    backbone = {**_qwen2(64, 2, 96), **windowed}
    return {
        "sample_rate": 44100,
        "patch_size": 4,
        "enc_kwargs": {"backbone": backbone, "hop_size": 882, "input_dim": 882, "latent_dim": 64},
        "dec_kwargs": {"backbone": backbone, "latent_dim": 64, "output_dim": 882},
    }


def _qwen2(hidden: int, layers: int, wide: int) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "model_type": "qwen2",
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
    }


def _random(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Float32 weights with about unit gain; of buffers, what the published model computes."""
    if name.endswith("istft.window"):
        return np.sin(np.pi * np.arange(shape[0]) / shape[0]).astype(np.float32) ** 2
    if name.endswith("inv_freq"):
        return (10000.0 ** -(np.arange(shape[0]) / shape[0])).astype(np.float32)
    noise = named_noise(name, shape, seed)
    if name.endswith("bias"):
        values = 0.1 * noise
    elif len(shape) == 1:  # norms
        values = 1.0 + 0.1 * noise
    elif "embed" in name and "embedder" not in name and "patch_embed" not in name:
        values = noise
    else:
        values = noise / math.sqrt(math.prod(shape[1:]))
        if "lm_head" in name or "stop_head" in name:
            values *= HEAD_SCALE
    return values.astype(np.float32)
