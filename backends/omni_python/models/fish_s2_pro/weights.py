"""From the names of Fish Audio's checkpoints to those of this package's layers."""

from __future__ import annotations

import torch

_NAMES = {
    "attention.wo.": "self_attn.o_proj.",
    "feed_forward.w1.": "mlp.gate_proj.",
    "feed_forward.w3.": "mlp.up_proj.",
    "feed_forward.w2.": "mlp.down_proj.",
    "attention_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
    "attention_layer_scale.gamma": "self_attn_layer_scale.scale",
    "ffn_layer_scale.gamma": "mlp_layer_scale.scale",
}


def renamed(name: str, tensor: torch.Tensor, heads: int, kv_heads: int, head_dim: int) -> dict[str, torch.Tensor]:
    """A tensor of a transformer, as one or more of `Decoder` or `FrameTransformer`.

    Fish Audio turns neighbouring dimensions of a head together (GPT-J), `layers.rope.rotate` each with the one half a
    head further on. So queries and keys get their dimensions in another order, which no product of them notices.
    """
    stem, found, leaf = name.partition("attention.")
    if found and leaf == "wqkv.weight":
        sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        query, key, value = tensor.split(sizes)
        return {
            f"{stem}self_attn.q_proj.weight": _halves(query, head_dim),
            f"{stem}self_attn.k_proj.weight": _halves(key, head_dim),
            f"{stem}self_attn.v_proj.weight": value,
        }
    if found and leaf in ("q_norm.weight", "k_norm.weight"):
        return {f"{stem}self_attn.{leaf}": _halves(tensor, head_dim)}
    for theirs, ours in _NAMES.items():
        if theirs in name:
            return {name.replace(theirs, ours): tensor}
    return {name: tensor}


def _halves(tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[heads * head_dim, ...] with each head's even rows before its odd ones."""
    return tensor.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).reshape(tensor.shape)
