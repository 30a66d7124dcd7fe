"""The config.json of a tiny Qwen3-Omni checkpoint: the published fields, with the token ids of the tokenizer asset."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parent / "assets"
"""The tokenizer.json and the chat template of tiny checkpoints."""


@dataclass(frozen=True)
class Dimensions:
    """What may differ between two tiny checkpoints; the defaults are what the tests' fixtures were made with.

    The talker's vocabulary is `codebook_size` + 1024, for generation suppresses the last 1024 ids but the
    end of speech.
    The code2wav window is small so that a left context of 25 frames covers its whole receptive field.
    """

    thinker_layers: int = 4
    talker_layers: int = 3
    code_predictor_layers: int = 2
    code2wav_layers: int = 2
    audio_layers: int = 2
    vision_layers: int = 3
    deepstack_layers: tuple[int, ...] = (0, 1)
    thinker_hidden: int = 64
    talker_hidden: int = 48
    experts: int = 4
    experts_per_token: int = 2
    code_groups: int = 4
    codebook_size: int = 64
    code2wav_window: int = 8
    accept_layer: int = 2


def tiny_config(size: Dimensions) -> dict[str, Any]:
    """The config.json of a tiny checkpoint: the published one's fields, the token ids of the tokenizer asset."""
    return with_token_ids(
        {
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
            "model_type": "qwen3_omni_moe",
            "dtype": "float32",
            "enable_audio_output": True,
            "thinker_config": _thinker_config(size),
            "talker_config": _talker_config(size),
            "code2wav_config": _code2wav_config(size),
        }
    )


def with_token_ids(config: dict[str, Any]) -> dict[str, Any]:
    """The config.json with the tokenizer asset's ids, and the thinker's vocabulary just as large as that needs."""
    ids = token_ids()
    media = {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    thinker = config["thinker_config"]
    vocabulary = {"vocab_size": math.ceil((max(ids.values()) + 1) / 64) * 64}
    return {
        **config,
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "system_token_id": ids["system"],
        "user_token_id": ids["user"],
        "assistant_token_id": ids["assistant"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "thinker_config": {
            **thinker,
            **media,
            "user_token_id": ids["user"],
            "text_config": {**thinker["text_config"], **vocabulary},
        },
        "talker_config": {**config["talker_config"], **media},
    }


def _thinker_config(size: Dimensions) -> dict[str, Any]:
    return {
        "model_type": "qwen3_omni_moe_thinker",
        "dtype": "float32",
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "audio_config": {
            "model_type": "qwen3_omni_moe_audio_encoder",
            "d_model": 32,
            "encoder_layers": size.audio_layers,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "num_mel_bins": 128,
            "max_source_positions": 1500,
            "n_window": 50,
            "n_window_infer": 800,
            "conv_chunksize": 500,
            "downsample_hidden_size": 8,
            "output_dim": size.thinker_hidden,
        },
        "vision_config": {
            "model_type": "qwen3_omni_moe_vision_encoder",
            "depth": size.vision_layers,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "num_position_embeddings": 2304,
            "out_hidden_size": size.thinker_hidden,
            "deepstack_visual_indexes": list(size.deepstack_layers),
        },
        "text_config": {
            "model_type": "qwen3_omni_moe_text",
            "hidden_size": size.thinker_hidden,
            "intermediate_size": 128,
            "num_hidden_layers": size.thinker_layers,
            "moe_intermediate_size": 32,
            "rope_parameters": _MROPE,
            **_moe(size),
        },
    }


def _talker_config(size: Dimensions) -> dict[str, Any]:
    codes = size.codebook_size
    return {
        "model_type": "qwen3_omni_moe_talker",
        "dtype": "float32",
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "thinker_hidden_size": size.thinker_hidden,
        "accept_hidden_layer": size.accept_layer,
        "num_code_groups": size.code_groups,
        "spatial_merge_size": 2,
        "codec_pad_id": codes + 100,
        "codec_bos_id": codes + 101,
        "codec_eos_token_id": codes + 102,
        "codec_nothink_id": codes + 107,
        "codec_think_bos_id": codes + 108,
        "codec_think_eos_id": codes + 109,
        "speaker_id": {"chelsie": codes + 253, "ethan": codes + 254, "aiden": codes + 255},
        "text_config": {
            "model_type": "qwen3_omni_moe_talker_text",
            "vocab_size": codes + 1024,
            "hidden_size": size.talker_hidden,
            "intermediate_size": 96,
            "num_hidden_layers": size.talker_layers,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 48,
            "rope_parameters": _MROPE,
            **_moe(size),
        },
        "code_predictor_config": {
            "model_type": "qwen3_omni_moe_talker_code_predictor",
            "vocab_size": codes,
            "hidden_size": size.talker_hidden,
            "intermediate_size": 96,
            "num_hidden_layers": size.code_predictor_layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "layer_types": ["full_attention"] * size.code_predictor_layers,
            "num_code_groups": size.code_groups,
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
        },
    }


def _code2wav_config(size: Dimensions) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": size.code2wav_layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "layer_scale_initial_scale": 0.3,
        "sliding_window": size.code2wav_window,
        "max_position_embeddings": 8000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000},
        "codebook_size": size.codebook_size,
        "num_quantizers": size.code_groups,
        "decoder_dim": 32,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
    }


def _moe(size: Dimensions) -> dict[str, Any]:
    """What the decoders of thinker and talker have in common."""
    return {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "num_experts": size.experts,
        "num_experts_per_tok": size.experts_per_token,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": 65536,
        "tie_word_embeddings": False,
    }


_MROPE = {
    "rope_type": "default",
    "rope_theta": 1000000,
    "mrope_section": [4, 2, 2],
    "interleaved": True,
    "mrope_interleaved": True,
}


def token_ids() -> dict[str, int]:
    """Every token of the tokenizer asset with its id."""
    tokenizer = json.loads((ASSETS / "tokenizer.json").read_text("utf-8"))
    return {**tokenizer["model"]["vocab"], **{token["content"]: token["id"] for token in tokenizer["added_tokens"]}}
