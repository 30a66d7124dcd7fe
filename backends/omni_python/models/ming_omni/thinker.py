"""The thinker's language model, BailingMoeV2, and its weights by their published names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from omni_python.layers.decoder import Decoder, DecoderLayer
from omni_python.layers.grouped_moe import GroupedMoE
from omni_python.layers.partial_rotary import PartialRotary, reordered
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.experts import fuse_experts
from omni_python.models.loading.modules import assign, on_meta
from omni_python.models.ming_omni.architecture import ThinkerConfig

_MEDIA_GATES = (".mlp.image_gate.", ".mlp.audio_gate.")
"""Routers of tokens that stand for media (MultiRouter), of which no prompt here has any."""

_NAMES = {
    ".attention.dense.": ".self_attn.o_proj.",
    ".attention.query_layernorm.": ".self_attn.q_norm.",
    ".attention.key_layernorm.": ".self_attn.k_norm.",
    ".attention.q_norm.": ".self_attn.q_norm.",
    ".attention.k_norm.": ".self_attn.k_norm.",
    ".mlp.gate.expert_bias": ".mlp.expert_bias",
    "word_embeddings.": "embed_tokens.",
}


class ThinkerDecoder(Decoder):
    """A decoder with its token embedding, mixtures of experts after the first layers, and heads turned in part."""

    def __init__(self, config: ThinkerConfig) -> None:
        super().__init__(config.decoder)
        decoder = config.decoder
        self.embed_tokens = nn.Embedding(config.vocab, decoder.hidden)
        self.rotary = PartialRotary(decoder.head_dim, config.rotary_dim, decoder.rope_theta)
        for index, layer in enumerate(self.layers):
            if index >= config.dense_layers and isinstance(layer, DecoderLayer):
                layer.mlp = GroupedMoE(
                    decoder.hidden, config.expert_intermediate, config.routing, config.shared_intermediate
                )


class Thinker(nn.Module):
    def __init__(self, config: ThinkerConfig) -> None:
        super().__init__()
        self.model = ThinkerDecoder(config)
        self.lm_head = nn.Linear(config.decoder.hidden, config.vocab, bias=False)


def load_thinker(
    path: str | Path, config: ThinkerConfig, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto"
) -> Thinker:
    """The thinker of the checkpoint at `path`. Raises `CheckpointError`."""
    with on_meta():
        thinker = Thinker(config)
    if is_dummy(load_format):
        return draw_weights(thinker, dtype, device)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in read_tensors(path, "model.", dtype, device).items():
        if not any(gate in name for gate in _MEDIA_GATES):
            tensors |= _renamed(name, tensor, config)
    if config.tied and "model.embed_tokens.weight" in tensors:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    fuse_experts(tensors)
    return assign(thinker, tensors, "thinker")


def _renamed(name: str, tensor: torch.Tensor, config: ThinkerConfig) -> dict[str, torch.Tensor]:
    """A published tensor as one or more of `Thinker`; see `PartialRotary` for the order of queries and keys."""
    heads, dim, rotary = config.decoder.heads, config.decoder.head_dim, config.rotary_dim
    stem, joined, leaf = name.partition(".attention.query_key_value.")
    if joined:
        kv = config.decoder.kv_heads * dim
        query, key, value = tensor.split([heads * dim, kv, kv])
        return {
            f"{stem}.self_attn.q_proj.{leaf}": reordered(query, dim, rotary),
            f"{stem}.self_attn.k_proj.{leaf}": reordered(key, dim, rotary),
            f"{stem}.self_attn.v_proj.{leaf}": value,
        }
    for theirs, ours in _NAMES.items():
        if theirs in name:
            new = name.replace(theirs, ours)
            return {new: reordered(tensor, dim, rotary) if new.endswith(("q_norm.weight", "k_norm.weight")) else tensor}
    return {name: tensor}
