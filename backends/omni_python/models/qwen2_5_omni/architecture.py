"""A checkpoint's config.json, and the sizes of its decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_python.layers.decoder import DecoderConfig
from omni_python.models.loading.checkpoint import CheckpointError, load_config

MODEL_TYPE = "qwen2_5_omni"


def model_config(path: str | Path) -> Any:
    """The `Qwen2_5OmniConfig` of the config.json in directory `path`. Raises `CheckpointError`."""
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniConfig

    given = load_config(path)
    if given.get("model_type") != MODEL_TYPE:
        raise CheckpointError(f"{path}: model_type is {given.get('model_type')!r}, not {MODEL_TYPE!r}")
    return Qwen2_5OmniConfig.from_dict(given)


def decoder_config(text: Any) -> DecoderConfig:
    """Sizes from a thinker's `text_config` or a `talker_config`."""
    rope = text.rope_parameters
    if rope["rope_type"] != "default":
        raise CheckpointError(f"rope_type {rope['rope_type']!r} is not supported; supported: 'default'")
    if text.sliding_window is not None:
        raise CheckpointError("use_sliding_window is not supported")
    return DecoderConfig(
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        intermediate=text.intermediate_size,
        rope_theta=rope["rope_theta"],
        norm_eps=text.rms_norm_eps,
        mrope_sections=rope["mrope_section"],
        mrope_interleaved=False,
        attention_bias=True,
        output_bias=False,
        qk_norm=False,
    )
