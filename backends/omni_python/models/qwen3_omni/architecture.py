"""A checkpoint's config.json, completed: what it leaves out has the value of transformers' `Qwen3OmniMoeConfig`.

That library is not imported: it takes longer to load than a whole small stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omni_python.models.loading.checkpoint import load_config

_THETA = 10_000.0

_MEDIA_TOKENS = {"audio_token_id": 151646, "image_token_id": 151655, "video_token_id": 151656}

_DECODER: dict[str, Any] = {
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "rope_theta": _THETA,
}

_SPARSE: dict[str, Any] = {
    **_DECODER,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_experts": 128,
    "num_experts_per_tok": 8,
}

_DEFAULTS: dict[str, dict[str, Any]] = {
    "": {
        "im_start_token_id": 151644,
        "im_end_token_id": 151645,
        "tts_pad_token_id": 151671,
        "tts_bos_token_id": 151672,
        "tts_eos_token_id": 151673,
        "system_token_id": 8948,
        "user_token_id": 872,
        "assistant_token_id": 77091,
    },
    "thinker_config": _MEDIA_TOKENS,
    "thinker_config.text_config": {
        **_SPARSE,
        "vocab_size": 3584,
        "hidden_size": 2048,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "rope_theta": 1_000_000.0,
    },
    "thinker_config.audio_config": {
        "num_mel_bins": 128,
        "encoder_layers": 32,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "d_model": 1280,
        "activation_function": "gelu",
        "max_source_positions": 1500,
        "n_window": 100,
        "n_window_infer": 400,
        "conv_chunksize": 500,
        "downsample_hidden_size": 480,
        "output_dim": 3584,
    },
    "thinker_config.vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 4304,
        "num_heads": 16,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 3584,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    },
    "talker_config": {
        **_MEDIA_TOKENS,
        "num_code_groups": 32,
        "thinker_hidden_size": 2048,
        "accept_hidden_layer": 18,
        "codec_eos_token_id": 4198,
        "codec_nothink_id": 4203,
        "codec_think_bos_id": 4204,
        "codec_think_eos_id": 4205,
        "codec_pad_id": 4196,
        "codec_bos_id": 4197,
        "vision_start_token_id": 151652,
        "speaker_id": None,
    },
    "talker_config.text_config": {
        **_SPARSE,
        "vocab_size": 3072,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 20,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 384,
        "norm_topk_prob": False,
    },
    "talker_config.code_predictor_config": {
        **_DECODER,
        "vocab_size": 2048,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 5,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_code_groups": 32,
    },
    "code2wav_config": {
        "codebook_size": 2048,
        "hidden_size": 1024,
        "hidden_act": "silu",
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "attention_bias": False,
        "sliding_window": 72,
        "intermediate_size": 3072,
        "rms_norm_eps": 1e-5,
        "num_hidden_layers": 8,
        "num_quantizers": 16,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "decoder_dim": 1536,
        "rope_theta": _THETA,
    },
}


def model_config(path: str | Path) -> Any:
    """The sections and keys of the config.json in directory `path` as attributes."""
    return complete(load_config(path))


def complete(given: Mapping[str, Any], section: str = "") -> SimpleNamespace:
    """`given`, the content of config.json or of the `section` of that dotted name, as attributes."""
    found = {key: value for key, value in given.items() if value is not None}
    if "num_local_experts" in found:  # as transformers writes a talker's
        found["num_experts"] = found.pop("num_local_experts")
    merged = {**_DEFAULTS[section], **found}
    if "rope_theta" in _DEFAULTS[section]:
        merged["rope_parameters"] = _rope(merged)
    for name in _subsections(section):
        key = name.rpartition(".")[2]
        merged[key] = complete(merged.get(key) or {}, name)
    return SimpleNamespace(**merged)


def _rope(section: dict[str, Any]) -> dict[str, Any]:
    """Older checkpoints have the base beside `rope_scaling`, newer ones in `rope_parameters`."""
    rope = dict(section.pop("rope_scaling", None) or section.get("rope_parameters") or {})
    theta = section.pop("rope_theta")
    return {"rope_theta": theta, "rope_type": rope.get("type", "default"), **rope}


def _subsections(section: str) -> list[str]:
    return [name for name in _DEFAULTS if name and name.rpartition(".")[0] == section]
