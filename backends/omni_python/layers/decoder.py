"""A stack of decoder layers over a paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.kv_cache import AttentionPlan, PagedKVCache
from omni_python.layers.mlp import GatedMLP, SparseMoE
from omni_python.layers.rope import Rotary, rotate


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder stack. `experts` 0 makes every layer dense; `mrope_sections` None means 1D positions.

    `attention_bias` is of queries, keys and values, and of attention's output too where `output_bias` is left out.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float
    norm_eps: float = 1e-6
    mrope_sections: Sequence[int] | None = None
    mrope_interleaved: bool = True
    attention_bias: bool = False
    output_bias: bool | None = None
    qk_norm: bool = True
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    normalise_experts: bool = True
    dense_layers: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Deepstack:
    """Vision features that are added to the outputs of the first layers: `layers`[l] [n, hidden] after layer l,
    at the places `tokens` [n] of the flattened batch."""

    tokens: torch.Tensor
    layers: list[torch.Tensor]


class RMSNorm(nn.Module):
    """Over the last dimension, which has `size` values."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self._eps)


class Attention(nn.Module):
    """Grouped-query attention; queries and keys are normed where the config says so."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self._index = index
        self._head_dim = config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=bias)
        output_bias = bias if config.output_bias is None else config.output_bias
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=output_bias)
        norms = [RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity() for _ in range(2)]
        self.q_norm, self.k_norm = norms

    def forward(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], cache: PagedKVCache, plan: AttentionPlan
    ) -> torch.Tensor:
        """`x` [tokens, hidden] -> the same; `angles` are the cosine and the sine that `Rotary` gives."""
        heads = (len(x), -1, self._head_dim)
        query = rotate(self.q_norm(self.q_proj(x).view(heads)), *angles)
        key = rotate(self.k_norm(self.k_proj(x).view(heads)), *angles)
        out = cache.attend(self._index, query, key, self.v_proj(x).view(heads), plan)
        return self.o_proj(out.reshape(len(x), -1))


class DecoderLayer(nn.Module):
    """Attention and a dense or sparse MLP, each behind a norm and beside the residual."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.norm_eps)
        self.self_attn = Attention(config, index)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.norm_eps)
        self.mlp: nn.Module
        if config.experts and index not in config.dense_layers:
            self.mlp = SparseMoE(
                config.hidden,
                config.expert_intermediate,
                config.experts,
                config.experts_per_token,
                config.normalise_experts,
                config.shared_intermediate,
            )
        else:
            self.mlp = GatedMLP(config.hidden, config.intermediate)

    def forward(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], cache: PagedKVCache, plan: AttentionPlan
    ) -> torch.Tensor:
        """As `Attention.forward`."""
        x = x + self.self_attn(self.input_layernorm(x), angles, cache, plan)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Decoder layers and the final norm, over a flattened batch of rows that may each be at another length."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.norm_eps)
        self.rotary = Rotary(config.head_dim, config.rope_theta, config.mrope_sections, config.mrope_interleaved)

    def new_cache(self, num_pages: int) -> PagedKVCache:
        """An empty cache of the weights' dtype and on their device."""
        weight = self.norm.weight
        config = self.config
        return PagedKVCache(
            config.layers, num_pages, config.kv_heads, config.head_dim, dtype=weight.dtype, device=weight.device
        )

    def forward(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        cache: PagedKVCache,
        plan: AttentionPlan,
        deepstack: Deepstack | None = None,
        tap: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`embeds` [tokens, hidden], `positions` [3, tokens] -> the normed output and the tapped hidden state.

        `tap` counts as Hugging Face's `hidden_states` do: 0 is `embeds`, k the output of the k-th layer before
        deepstack features are added to it, and the number of layers the normed output.
        """
        angles = self.rotary(positions, embeds.dtype)
        x = embeds
        tapped = x if tap == 0 else None
        for index, layer in enumerate(self.layers):
            x = layer(x, angles, cache, plan)
            if tap == index + 1:
                tapped = x
            if deepstack is not None and index < len(deepstack.layers):
                x = x.index_add(0, deepstack.tokens, deepstack.layers[index])
        x = self.norm(x)
        return x, x if tap == len(self.layers) else tapped
