"""The decode step of a decoder stack by the fused kernels: the same function as `Decoder.forward`, up to rounding."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.decoder import Attention, Decoder, DecoderConfig, DecoderLayer, RMSNorm
from omni_python.layers.kv_cache import PAGE_TOKENS, PagedKVCache
from omni_python.layers.mlp import GatedMLP, SparseMoE
from omni_python.layers.packed_prompts import PROMPT_SIZES, PackedPrompts, PackedRows

if TYPE_CHECKING:
    from omni_python.layers.kernels.attention import Where
    from omni_python.layers.kernels.moe import MoEWeights

MAX_ROWS = 32


def unsupported(config: DecoderConfig, weight: torch.Tensor) -> str | None:
    """Why the fused kernels cannot run a stack of `config` whose weights are like `weight`; None where they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not weight.is_cuda or torch.cuda.get_device_capability(weight.device) < (9, 0):
        return "they need a GPU of compute capability 9.0"
    if weight.dtype != torch.bfloat16:
        return f"they need bfloat16 weights, not {weight.dtype}"
    if config.attention_bias or config.head_dim & (config.head_dim - 1) or config.head_dim < 32:
        return "they know no attention bias, and head sizes that are powers of two from 32 on alone"
    if config.hidden % 128 or config.expert_intermediate % 128:
        return "sizes must be multiples of 128"
    if config.shared_intermediate and config.shared_intermediate % config.expert_intermediate:
        return "a shared expert must be as wide as a number of others"
    if config.experts and config.dense_layers:
        return "layers must be all alike"
    return None


@dataclass(frozen=True)
class _Layer:
    qkv: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: torch.Tensor
    gate_up: torch.Tensor | None
    down: torch.Tensor | None
    experts: MoEWeights | None


class FusedDecoder:
    """Runs `decoder` for single new tokens (or the first two) of at most MAX_ROWS sequences, or for whole prompts.

    It joins weights that one kernel reads together into one tensor each, makes the decoder's own parameters views of
    them, and moves the gains of its norms into the weights that follow, so the decoder itself computes on as before.
    Nothing here waits for the device or looks at values on the host, so a step can be captured as a graph.
    """

    def __init__(self, decoder: Decoder, max_sequences: int, splits: int) -> None:
        """`splits`: among how many multiprocessors one sequence's attention is spread."""
        from omni_python.layers.kernels.attention import Heads, SplitBuffers

        config = decoder.config
        self._decoder = decoder
        self._eps = config.norm_eps
        self._heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self._splits = SplitBuffers(splits, max_sequences, self._heads, decoder.norm.weight.device)
        self._layers = [_joined(layer) for layer in decoder.layers if isinstance(layer, DecoderLayer)]

    def __call__(self, x: torch.Tensor, cache: PagedKVCache, where: Where) -> torch.Tensor:
        """`x` [sequences * new, H] -> the last layer's output, not normed, in `x` itself."""
        from omni_python.layers.kernels.attention import attend
        from omni_python.layers.kernels.linear import linear
        from omni_python.layers.kernels.moe import mix

        eps = self._eps
        for index, layer in enumerate(self._layers):
            qkv = linear(x, layer.qkv, normed=True, eps=eps)
            keys, values = cache.layer(index)
            attended = attend(qkv, layer.q_norm, layer.k_norm, eps, self._heads, keys, values, where, self._splits)
            linear(attended, layer.out, residual=x)
            if layer.experts is not None:
                mix(x, eps, layer.experts)
            elif layer.gate_up is not None and layer.down is not None:
                activated = linear(x, layer.gate_up, normed=True, eps=eps, gated=True)
                linear(activated, layer.down, residual=x)
        return x

    def prompts(self, rows: PackedRows, cache: PagedKVCache, tap: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The normed output and the hidden state at `tap` (see `Decoder.forward`), each [rows, H]."""
        from omni_python.layers.kernels.grouped_moe import mix_grouped
        from omni_python.layers.kernels.prompt_attention import attend_prompts

        eps, x = self._eps, rows.embeds
        angles = self._decoder.rotary.angles(rows.positions)
        turns = (angles.cos(), angles.sin())
        tapped = x.clone() if tap == 0 else x
        for index, layer in enumerate(self._layers):
            qkv = F.linear(F.rms_norm(x, x.shape[1:], eps=eps), layer.qkv)
            keys, values = cache.layer(index)
            attended = attend_prompts(
                qkv, layer.q_norm, layer.k_norm, eps, self._heads, keys, values, rows.first, rows.slots, turns
            )
            x.addmm_(attended, layer.out.T)
            if layer.experts is not None:
                mix_grouped(x, eps, layer.experts)
            elif layer.gate_up is not None and layer.down is not None:
                gate, up = F.linear(F.rms_norm(x, x.shape[1:], eps=eps), layer.gate_up).chunk(2, dim=-1)
                x.addmm_(F.silu(gate) * up, layer.down.T)
            if tap == index + 1:
                tapped = x.clone()
            if index < len(rows.deepstack):
                x += rows.deepstack[index]
        normed = self._decoder.norm(x)
        return normed, normed if tap is None or tap == len(self._layers) else tapped

    def packed_prompts(
        self,
        cache: PagedKVCache,
        tap: int | None = None,
        deepstack_layers: int = 0,
        sizes: Sequence[int] = PROMPT_SIZES,
    ) -> PackedPrompts:
        """`prompts`, captured for each of `sizes`; the last page of `cache` is no request's."""
        weight = self._layers[0].qkv
        spare_slot = (cache.num_pages - 1) * PAGE_TOKENS
        return PackedPrompts(lambda rows: self.prompts(rows, cache, tap), weight, spare_slot, deepstack_layers, sizes)


def _joined(layer: DecoderLayer) -> _Layer:
    attention: Attention = layer.self_attn
    mlp = layer.mlp
    fold_gain(layer.input_layernorm, attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
    gate_up = down = experts = None
    if isinstance(mlp, GatedMLP):
        fold_gain(layer.post_attention_layernorm, mlp.gate_proj.weight, mlp.up_proj.weight)
        gate_up = _join(mlp.gate_proj.weight, mlp.up_proj.weight)
        down = mlp.down_proj.weight.detach()
    elif isinstance(mlp, SparseMoE):
        readers = [mlp.gate.weight, mlp.experts.gate_up_proj]
        if mlp.shared_expert is not None and mlp.shared_expert_gate is not None:
            readers += [mlp.shared_expert_gate.weight, mlp.shared_expert.gate_proj.weight]
            readers.append(mlp.shared_expert.up_proj.weight)
        fold_gain(layer.post_attention_layernorm, *readers)
        experts = _experts(mlp)
    return _Layer(
        _join(attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight),
        _gain(attention.q_norm),
        _gain(attention.k_norm),
        attention.o_proj.weight.detach(),
        gate_up,
        down,
        experts,
    )


def _gain(norm: nn.Module) -> torch.Tensor | None:
    return norm.weight.detach() if isinstance(norm, RMSNorm) else None


def fold_gain(norm: RMSNorm, *weights: torch.Tensor) -> None:
    """Move the gain of `norm` into the `weights` [..., H] that read its output; its own becomes 1."""
    with torch.no_grad():
        for weight in weights:
            weight.mul_(norm.weight)
        norm.weight.fill_(1.0)


def _join(*weights: torch.Tensor) -> torch.Tensor:
    """The weights in one tensor, whose parts they become."""
    joined = torch.cat([weight.detach() for weight in weights])
    start = 0
    for weight in weights:
        weight.data = joined[start : start + len(weight)]
        start += len(weight)
    return joined


def _experts(mlp: SparseMoE) -> MoEWeights:
    from omni_python.layers.kernels.moe import MoEWeights

    experts = mlp.experts
    router, gate_up, down = mlp.gate.weight.detach(), experts.gate_up_proj.detach(), experts.down_proj.detach()
    always = 0
    if mlp.shared_expert is not None and mlp.shared_expert_gate is not None:
        shared = mlp.shared_expert
        hidden, size = down.shape[1:]
        gate, up = (p.weight.detach().view(-1, size, hidden) for p in (shared.gate_proj, shared.up_proj))
        always = len(gate)
        router = torch.cat((router, mlp.shared_expert_gate.weight.detach()))
        gate_up = torch.cat((gate_up, torch.cat((gate, up), dim=1)))
        down = torch.cat((down, shared.down_proj.weight.detach().view(hidden, always, size).transpose(0, 1)))
        experts.gate_up_proj.data, experts.down_proj.data = gate_up[:-always], down[:-always]
    return MoEWeights(router, gate_up, down, mlp.top_k, always, mlp.normalise)
