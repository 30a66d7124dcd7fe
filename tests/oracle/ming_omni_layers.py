"""What the parts of `ming_omni_reference` have in common: layers, and reading a checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

Weights = dict[str, torch.Tensor]


def load_json(directory: Path, name: str = "config.json") -> dict[str, Any]:
    read: dict[str, Any] = json.loads((directory / name).read_text())
    return read


def load(directory: Path) -> Weights:
    from safetensors.torch import load_file

    found: Weights = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= {name: tensor.double() for name, tensor in load_file(file).items()}
    return found


def linear(weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def layer_norm(weights: Weights, name: str, x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], eps)


def log_mel(samples: torch.Tensor, bins: int) -> torch.Tensor:
    """As OpenAI's whisper: [bins, n // 160]."""
    padded = F.pad(samples[None, None], (200, 200), mode="reflect")[0, 0]
    frames = padded.unfold(0, 400, 160)[:-1] * torch.hann_window(400, dtype=torch.float64)
    power = torch.fft.rfft(frames).abs() ** 2
    mels = torch.linspace(0, 15 + 27 * math.log(8) / math.log(6.4), bins + 2, dtype=torch.float64)
    edges = torch.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))
    hertz = torch.arange(201).double() * 40
    filters = torch.zeros(bins, 201, dtype=torch.float64)
    for band in range(bins):
        low, middle, high = edges[band : band + 3]
        rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
        filters[band] = torch.minimum(rising, falling).clamp(min=0) * 2 / (high - low)
    logs = (power @ filters.T).clamp(min=1e-10).log10().T
    return (torch.maximum(logs, logs.max() - 8) + 4) / 4


def gated(weights: Weights, at: str, x: torch.Tensor) -> torch.Tensor:
    gate, up, down = (weights[f"{at}{part}_proj.weight"] for part in ("gate", "up", "down"))
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def qwen2(w: Weights, prefix: str, config: dict[str, Any], x: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """[n, hidden] -> the normed output."""
    heads, eps = config["num_attention_heads"], config["rms_norm_eps"]
    dim = config["hidden_size"] // heads
    for layer in range(config["num_hidden_layers"]):
        at = f"{prefix}layers.{layer}."
        normed = rms(x, w[at + "input_layernorm.weight"], eps)
        query, key, value = (linear(w, f"{at}self_attn.{p}_proj", normed).view(len(x), -1, dim) for p in "qkv")
        slow = config["rope_theta"] ** -(torch.arange(0, dim, 2).double() / dim)
        angles = torch.arange(len(x)).double()[:, None] * slow
        query, key = (halves_turned(part, angles) for part in (query, key))
        x = x + attended(query, key, value, window or len(x)) @ w[at + "self_attn.o_proj.weight"].T
        x = x + gated(w, at + "mlp.", rms(x, w[at + "post_attention_layernorm.weight"], eps))
    return rms(x, w[prefix + "norm.weight"], eps)


def attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None) -> torch.Tensor:
    """Each [n, heads, dim]; the last `window` places up to its own are seen, or, without one, all places."""
    n, heads, dim = query.shape
    hidden = torch.zeros(n, n, dtype=torch.bool)
    if window is not None:
        distance = torch.arange(n)[:, None] - torch.arange(n)
        hidden = (distance < 0) | (distance >= window)
    out = []
    for head in range(heads):
        of = head // (heads // key.shape[1])
        scores = (query[:, head] @ key[:, of].T / math.sqrt(dim)).masked_fill(hidden, -math.inf)
        out.append(scores.softmax(-1) @ value[:, of])
    return torch.cat(out, dim=1)


def halves_turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """`x` [n, heads, dim], `angles` [n, dim / 2]."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def neighbours_turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(2)
