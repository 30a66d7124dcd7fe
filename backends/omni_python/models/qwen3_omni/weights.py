"""From a checkpoint's config and tensors to this package's modules."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from omni_python.layers.decoder import DecoderConfig
from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.loading.experts import fuse_experts
from omni_python.models.loading.modules import assign

M = TypeVar("M", bound=nn.Module)


def decoder_config(text: Any) -> DecoderConfig:
    """Sizes from a thinker's or talker's `text_config` or a `code_predictor_config`."""
    rope = text.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise CheckpointError(f"rope_type {rope['rope_type']!r} is not supported; supported: 'default'")
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    experts = getattr(text, "num_experts", 0) or 0
    shared = getattr(text, "shared_expert_intermediate_size", 0) or 0
    dense: set[int] = set()
    if not shared:  # the talker's layers, which have a shared expert, are sparse whatever these two keys say
        dense |= set(getattr(text, "mlp_only_layers", None) or ())
        dense |= {
            layer for layer in range(text.num_hidden_layers) if (layer + 1) % getattr(text, "decoder_sparse_step", 1)
        }
    return DecoderConfig(
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_dim=head_dim,
        intermediate=text.intermediate_size,
        rope_theta=rope["rope_theta"],
        norm_eps=text.rms_norm_eps,
        mrope_sections=rope.get("mrope_section", (24, 20, 20)) if experts else None,
        attention_bias=text.attention_bias,
        experts=experts,
        experts_per_token=text.num_experts_per_tok if experts else 0,
        expert_intermediate=text.moe_intermediate_size if experts else 0,
        shared_intermediate=shared,
        normalise_experts=getattr(text, "norm_topk_prob", True),
        dense_layers=frozenset(dense),
    )


def fill(module: M, tensors: dict[str, torch.Tensor], what: str) -> M:
    """`module`, built on the meta device, with `tensors` as its weights; raises `CheckpointError` where they differ.

    `tensors` is used up.
    """
    fuse_experts(tensors)
    return assign(module, tensors, what)
