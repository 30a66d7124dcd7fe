"""The thinker's language model, BailingMoeV2, and its weights by their published names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from omni_python.layers.decoder import DecoderLayer
from omni_python.layers.grouped_moe import GroupedMoE, GroupedRouter
from omni_python.layers.kv_cache import AttentionPlan, PagedKVCache
from omni_python.layers.language_model import TextDecoder
from omni_python.layers.partial_rotary import PartialRotary, reordered
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.experts import fuse_experts
from omni_python.models.loading.modules import assign, on_meta
from omni_python.models.ming_omni.architecture import ThinkerConfig

TEXT, SEEN, HEARD = range(3)
"""What a token stands for, which says by which router it goes."""

_NAMES = {
    ".attention.dense.": ".self_attn.o_proj.",
    ".attention.query_layernorm.": ".self_attn.q_norm.",
    ".attention.key_layernorm.": ".self_attn.k_norm.",
    ".attention.q_norm.": ".self_attn.q_norm.",
    ".attention.k_norm.": ".self_attn.k_norm.",
    "word_embeddings.": "embed_tokens.",
}


class MultiRouterMoE(GroupedMoE):
    """Tokens that stand for pictures are routed by `image_gate`, those that stand for sound by `audio_gate`."""

    def __init__(self, config: ThinkerConfig) -> None:
        hidden = config.decoder.hidden
        super().__init__(hidden, config.expert_intermediate, config.routing, config.shared_intermediate)
        self.image_gate = GroupedRouter(hidden, config.routing)
        self.audio_gate = GroupedRouter(hidden, config.routing)

    def forward(self, x: torch.Tensor, kinds: torch.Tensor | None = None) -> torch.Tensor:
        """`kinds` uint8 [tokens]: what each stands for; None where all are text."""
        weights, chosen = self.gate(x)
        if kinds is not None:
            for kind, gate in ((SEEN, self.image_gate), (HEARD, self.audio_gate)):
                of_kind = (kinds == kind)[:, None]
                others = gate(x)
                weights, chosen = torch.where(of_kind, others[0], weights), torch.where(of_kind, others[1], chosen)
        return self.mixed(x, weights, chosen)


class ThinkerLayer(DecoderLayer):
    def __init__(self, config: ThinkerConfig, index: int) -> None:
        super().__init__(config.decoder, index)
        if index >= config.dense_layers:
            routing = (config.decoder.hidden, config.expert_intermediate, config.routing, config.shared_intermediate)
            self.mlp = MultiRouterMoE(config) if config.multi_router else GroupedMoE(*routing)

    def read(
        self,
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        cache: PagedKVCache,
        plan: AttentionPlan,
        kinds: torch.Tensor | None,
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles, cache, plan)
        normed = self.post_attention_layernorm(x)
        return x + (self.mlp(normed, kinds) if isinstance(self.mlp, MultiRouterMoE) else self.mlp(normed))


class ThinkerDecoder(TextDecoder):
    """Mixtures of experts after the first layers, and heads turned in part."""

    def __init__(self, config: ThinkerConfig) -> None:
        super().__init__(config.decoder, config.vocab)
        self.layers = nn.ModuleList(ThinkerLayer(config, index) for index in range(config.decoder.layers))
        self.rotary = PartialRotary(
            config.decoder.head_dim, config.rotary_dim, config.decoder.rope_theta, config.sections
        )

    def read(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        cache: PagedKVCache,
        plan: AttentionPlan,
        kinds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`embeds` [tokens, hidden], `positions` [3, tokens], `kinds` as for `MultiRouterMoE` -> the normed output."""
        angles = self.rotary(positions, embeds.dtype)
        x = embeds
        for layer in self.layers:
            assert isinstance(layer, ThinkerLayer)
            x = layer.read(x, angles, cache, plan, kinds)
        return self.norm(x)


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
