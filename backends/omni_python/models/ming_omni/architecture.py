"""Sizes of the model, from a checkpoint's config.json and those in its folders talker, talker/llm and talker/vae."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omni_python.layers.decoder import DecoderConfig
from omni_python.layers.frame_transformer import FrameTransformerConfig
from omni_python.layers.grouped_moe import GroupedRouting
from omni_python.models.loading.checkpoint import CheckpointError, load_config

MODEL_TYPE = "bailingmm_moe_v2_lite"
AGGREGATOR_LAYERS = 4
"""Of the AudioVAE's encoder; no file of a checkpoint tells it."""
SECTIONS = (8, 12, 12)
"""How many frequencies turn with time, height and width, where the config does not tell: as in the published code."""
WHOLE = 1 << 30
"""As the window of a decoder that sees everything before."""


@dataclass(frozen=True)
class ThinkerConfig:
    """BailingMoeV2. `decoder` tells nothing of experts: all layers but the first `dense_layers` have `routing` among
    experts of `expert_intermediate`, and shared ones of `shared_intermediate`. With `multi_router` tokens that stand
    for pictures, and those that stand for sound, have routers of their own. `sections` as for `PartialRotary`."""

    decoder: DecoderConfig
    rotary_dim: int
    sections: tuple[int, int, int]
    vocab: int
    tied: bool
    dense_layers: int
    routing: GroupedRouting
    multi_router: bool
    expert_intermediate: int
    shared_intermediate: int
    end: int
    context: int


@dataclass(frozen=True)
class FlowConfig:
    """A transformer over latents; `qk_norm` of its queries and keys."""

    hidden: int
    depth: int
    heads: int
    intermediate: int
    qk_norm: bool


@dataclass(frozen=True)
class TalkerConfig:
    """`patch` latents of `latent` values a step, `history` latents before them as condition, `steps` of the flow, whose
    guidance has `guidance` of strength."""

    decoder: DecoderConfig
    vocab: int
    flow: FlowConfig
    aggregator: FlowConfig
    speaker: int
    latent: int
    patch: int
    history: int
    steps: int
    guidance: float
    context: int


@dataclass(frozen=True)
class VAEConfig:
    """Each latent gives `upsampling` frames of `hop` samples in the decoder. The encoder reads frames of `input`
    samples `encoded_hop` apart, and an `aggregator` makes a latent of `upsampling` frames of it."""

    sample_rate: int
    latent: int
    upsampling: int
    hop: int
    decoder: FrameTransformerConfig
    input: int
    encoded_hop: int
    encoder: FrameTransformerConfig
    aggregator: FrameTransformerConfig

    @property
    def samples_per_latent(self) -> int:
        return self.upsampling * self.hop


def thinker_config(directory: str | Path) -> ThinkerConfig:
    """Raises `CheckpointError` for another family's checkpoint, and for what is not supported."""
    config = load_config(directory)
    if config.get("model_type") != MODEL_TYPE:
        raise CheckpointError(f"{directory}: model_type is {config.get('model_type')!r}, not {MODEL_TYPE!r}")
    try:
        return _thinker(config["llm_config"])
    except KeyError as error:
        raise CheckpointError(f"{directory}: config.json has no {error} in its llm_config") from None


def talker_config(directory: str | Path) -> TalkerConfig:
    """What the config does not say is as in SGLang-Omni. Raises `CheckpointError`."""
    folder = Path(directory) / "talker"
    config, llm = load_config(folder), load_config(folder / "llm")
    try:
        decoder = _qwen2(llm)
        return TalkerConfig(
            decoder=decoder,
            vocab=llm["vocab_size"],
            flow=_flow(config["flowmodel"], "flowmodel"),
            aggregator=_flow(config["aggregator"], "aggregator"),
            speaker=config.get("spk_dim", 192),
            latent=config["flowmodel"].get("in_channels", 64),
            patch=config.get("patch_size", 4),
            history=config.get("history_patch_size", 32),
            steps=config.get("steps", 10),
            guidance=config.get("cfg_strength", 2.0),
            context=llm["max_position_embeddings"],
        )
    except KeyError as error:
        raise CheckpointError(f"{folder}: its config.json has no {error}") from None


def vae_config(directory: str | Path) -> VAEConfig:
    """Raises `CheckpointError`."""
    folder = Path(directory) / "talker" / "vae"
    config = load_config(folder)
    try:
        decoder, encoder = config["dec_kwargs"], config["enc_kwargs"]
        backbone = _frames(encoder["backbone"])
        made = VAEConfig(
            sample_rate=config["sample_rate"],
            latent=decoder["latent_dim"],
            upsampling=config["patch_size"],
            hop=decoder["output_dim"],
            decoder=_frames(decoder["backbone"]),
            input=encoder["input_dim"],
            encoded_hop=encoder.get("hop_size", 320),
            encoder=backbone,
            aggregator=replace(backbone, layers=AGGREGATOR_LAYERS),
        )
    except KeyError as error:
        raise CheckpointError(f"{folder}: its config.json has no {error}") from None
    if made.upsampling < 1 or made.encoded_hop != made.hop:
        raise CheckpointError(f"{folder}: patch_size {made.upsampling} and frames of unequal lengths are not supported")
    return made


def _thinker(config: Mapping[str, Any]) -> ThinkerConfig:
    if config.get("use_bias"):
        raise CheckpointError("llm_config: use_bias is not supported")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    rotary = int(head_dim * config["partial_rotary_factor"])
    expert = config["moe_intermediate_size"]
    return ThinkerConfig(
        decoder=DecoderConfig(
            hidden=hidden,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            head_dim=head_dim,
            intermediate=config["intermediate_size"],
            rope_theta=config["rope_theta"],
            norm_eps=config["rms_norm_eps"],
            attention_bias=bool(config.get("use_qkv_bias")),
            output_bias=False,
            qk_norm=bool(config.get("use_qk_norm")),
        ),
        rotary_dim=rotary,
        sections=_sections(config.get("rope_scaling") or {}, rotary),
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings")),
        dense_layers=config["first_k_dense_replace"],
        routing=GroupedRouting(
            experts=config["num_experts"],
            experts_per_token=config["num_experts_per_tok"],
            groups=config["n_group"],
            groups_per_token=config["topk_group"],
            scale=config.get("routed_scaling_factor") or config["moe_router_topk_scaling_factor"],
        ),
        multi_router=config.get("router_type") == "MultiRouter",
        expert_intermediate=expert,
        shared_intermediate=expert * (config.get("num_shared_experts") or 0),
        end=config["eos_token_id"],
        context=config["max_position_embeddings"],
    )


def _sections(scaling: Mapping[str, Any], rotary: int) -> tuple[int, int, int]:
    if scaling.get("type") != "video_rope":
        raise CheckpointError(f"llm_config: rope_scaling of type {scaling.get('type')!r} is not supported")
    time, height, width = scaling.get("mrope_section", SECTIONS)
    if time + height + width != rotary // 2:
        raise CheckpointError(f"llm_config: mrope_section has not {rotary // 2} frequencies, as many as are turned")
    return time, height, width


def _qwen2(config: Mapping[str, Any]) -> DecoderConfig:
    if config.get("use_sliding_window"):
        raise CheckpointError("talker/llm: use_sliding_window is not supported")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return DecoderConfig(
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config["intermediate_size"],
        rope_theta=_theta(config),
        norm_eps=config["rms_norm_eps"],
        attention_bias=True,
        output_bias=False,
        qk_norm=False,
    )


def _flow(config: Mapping[str, Any], where: str) -> FlowConfig:
    for key in ("pe_attn_head", "spk_dim"):
        if config.get(key) is not None:
            raise CheckpointError(f"talker/config.json: {where}.{key} is not supported")
    if config.get("qk_norm") not in (None, "rms_norm"):
        raise CheckpointError(f"talker/config.json: {where}.qk_norm {config['qk_norm']!r} is not supported")
    hidden = config["hidden_size"]
    return FlowConfig(
        hidden=hidden,
        depth=config["depth"],
        heads=config["num_heads"],
        intermediate=int(hidden * config.get("mlp_ratio", 4.0)),
        qk_norm=config.get("qk_norm") is not None,
    )


def _frames(config: Mapping[str, Any]) -> FrameTransformerConfig:
    """Qwen2's layers; all of them, or none, see a sliding window, which is for those from `max_window_layers` on (28 in
    transformers where the config does not say it)."""
    heads, hidden, layers = config["num_attention_heads"], config["hidden_size"], config["num_hidden_layers"]
    window = WHOLE
    first = config.get("max_window_layers", 28)
    if config.get("use_sliding_window") and first < layers:
        if first > 0:
            raise CheckpointError(f"talker/vae: a sliding window from layer {first} on is not supported")
        window = config["sliding_window"]
    return FrameTransformerConfig(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config["intermediate_size"],
        window=window,
        rope_theta=_theta(config),
        norm_eps=config["rms_norm_eps"],
        attention_bias=True,
    )


def _theta(config: Mapping[str, Any]) -> float:
    """Where transformers has written it: version 5 into another place than those before."""
    theta: float | None = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta")
    if theta is None:
        raise KeyError("rope_theta")
    return theta
