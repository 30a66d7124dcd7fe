"""Fish Audio S2-Pro as published, in plain float64: one request, no cache, no streaming, nothing of this package.

It reads the tensors by the checkpoint's own names. The facts (order of operations, names, constants that no file of the
checkpoint tells) are those of the fish-speech repository (its llama.py, inference.py, modded_dac.py, rvq.py and
modded_dac_vq.yaml) and of descript-audio-codec's quantizer. Rotary tables are exact here; fish-speech rounds them to
bfloat16.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

RATE = 44100
FRAME = 2048
CODEC_HEAD = 64
ENCODER_WINDOW, MODULE_WINDOW = 512, 128

Weights = dict[str, torch.Tensor]


@dataclass
class Speech:
    """`codes` [codebooks, frames]; `margin` is the smallest distance of a choice from the next best."""

    codes: torch.Tensor
    tokens: list[int] = field(default_factory=list)
    margin: float = math.inf


class Reference:
    """One checkpoint directory, whole in memory."""

    def __init__(self, directory: Path) -> None:
        from safetensors.torch import load_file

        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self.lm: Weights = {}
        for file in sorted(directory.glob("*.safetensors")):
            self.lm |= {name: tensor.double() for name, tensor in load_file(file).items()}
        codec = torch.load(directory / "codec.pth", map_location="cpu", weights_only=True)
        self.codec = _without_weight_norm({name: t.double() for name, t in codec.items() if t.is_floating_point()})

    # ---- the language model

    def speech(self, tokens: list[int], codes: torch.Tensor, max_tokens: int, penalty: float = 1.0) -> Speech:
        """Greedy. `tokens` is the prompt, `codes` [codebooks, n] are those at its semantic tokens, in order."""
        start, end = self.config["semantic_start_token_id"], self.config["semantic_end_token_id"]
        stop = self.config["eos_token_id"]
        embeds = self._prompt(tokens, codes)
        result = Speech(torch.zeros(codes.shape[0], 0, dtype=torch.int64))
        frames: list[list[int]] = []
        while True:
            hidden = self._stack("text_model.model.", self.config["text_config"], embeds)[-1]
            logits = self.lm["text_model.model.embeddings.weight"] @ hidden
            allowed = torch.full_like(logits, -math.inf)
            allowed[start : end + 1] = logits[start : end + 1]
            allowed[stop] = logits[stop]
            for token in set(result.tokens[-16:]):
                allowed[token] = allowed[token] / penalty if allowed[token] > 0 else allowed[token] * penalty
            token = self._best(allowed, result)
            result.tokens.append(token)
            if token == stop or len(result.tokens) == max_tokens:
                break
            frame = self._frame(hidden, token - start, result)
            frames.append(frame)
            embeds = torch.cat((embeds, self._spoken(token, frame)[None]))
        if frames:
            result.codes = torch.tensor(frames).T
        return result

    def _prompt(self, tokens: list[int], codes: torch.Tensor) -> torch.Tensor:
        start, end = self.config["semantic_start_token_id"], self.config["semantic_end_token_id"]
        rows, at = [], 0
        for token in tokens:
            if start <= token <= end:
                rows.append(self._spoken(token, codes[:, at].tolist()))
                at += 1
            else:
                rows.append(self.lm["text_model.model.embeddings.weight"][token])
        assert at == codes.shape[1]
        return torch.stack(rows)

    def _spoken(self, token: int, codes: list[int]) -> torch.Tensor:
        """The embedding of a semantic token with its frame's codes, by their number's root."""
        size = self.config["audio_decoder_config"]["vocab_size"]
        total = self.lm["text_model.model.embeddings.weight"][token].clone()
        for book, code in enumerate(codes):
            total += self.lm["audio_decoder.codebook_embeddings.weight"][book * size + code]
        return total / math.sqrt(len(codes) + 1)

    def _frame(self, hidden: torch.Tensor, semantic: int, result: Speech) -> list[int]:
        """The fast transformer's sequence is the slow one's normed output, then the codes so far."""
        config = self.config["audio_decoder_config"]
        codes, x = [semantic], hidden[None]
        while len(codes) < config["num_codebooks"]:
            x = torch.cat((x, self.lm["audio_decoder.embeddings.weight"][codes[-1]][None]))
            out = self._stack("audio_decoder.", config, x)[-1]
            codes.append(self._best(self.lm["audio_decoder.output.weight"] @ out, result))
        return codes

    @staticmethod
    def _best(logits: torch.Tensor, result: Speech) -> int:
        best = logits.topk(2)
        result.margin = min(result.margin, float(best.values[0] - best.values[1]))
        return int(best.indices[0])

    def _stack(self, prefix: str, config: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        """[n, dim] -> the normed output [n, dim]."""
        sizes = (config["n_head"], config["n_local_heads"], config["head_dim"])
        for layer in range(config["n_layer"]):
            at = f"{prefix}layers.{layer}."
            normed = _rms(x, self.lm[at + "attention_norm.weight"], config["norm_eps"])
            x = x + _attention(self.lm, at, normed, *sizes, config["rope_base"], config["norm_eps"], None)
            x = x + _feed_forward(self.lm, at, _rms(x, self.lm[at + "ffn_norm.weight"], config["norm_eps"]))
        return _rms(x, self.lm[prefix + "norm.weight"], config["norm_eps"])

    # ---- the codec

    def waveform(self, codes: torch.Tensor) -> torch.Tensor:
        """`codes` [codebooks, n] -> n * FRAME samples."""
        z = torch.zeros(())
        for book, row in enumerate(codes):
            at = _quantizer(book)
            vectors = self.codec[at + "codebook.weight"]
            z = z + self._conv(at + "out_proj", vectors[row.clamp(max=len(vectors) - 1)].T)
        x = self._transformer("quantizer.post_module.", z, MODULE_WINDOW)
        for stage in range(_count(self.codec, "quantizer.upsample.")):
            x = self._upsampled(f"quantizer.upsample.{stage}.0.conv", x)
            x = self._conv_next(f"quantizer.upsample.{stage}.1.", x)
        blocks = _count(self.codec, "decoder.model.") - 3
        x = self._causal("decoder.model.0.conv", x)
        for block in range(1, blocks + 1):
            at = f"decoder.model.{block}.block."
            x = self._upsampled(f"{at}1.conv", self._snake(f"{at}0.", x))
            for unit, dilation in enumerate((1, 3, 9)):
                x = self._residual(f"{at}{unit + 2}.", x, dilation)
        x = self._causal(f"decoder.model.{blocks + 2}.conv", self._snake(f"decoder.model.{blocks + 1}.", x))
        return x[0].tanh()

    def codes(self, samples: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Samples [n] at RATE -> codes [codebooks, ceil(n / FRAME)], and the smallest margin of a choice."""
        x = F.pad(samples.double(), (0, -len(samples) % FRAME))[None]
        blocks = _count(self.codec, "encoder.block.") - 3
        x = self._causal("encoder.block.0.conv", x)
        for block in range(1, blocks + 1):
            at = f"encoder.block.{block}.block."
            for unit, dilation in enumerate((1, 3, 9)):
                x = self._residual(f"{at}{unit}.", x, dilation)
            x = self._snake(f"{at}3.", x)
            stride = self.codec[f"{at}4.conv.weight"].shape[-1] // 2
            x = self._causal(f"{at}4.conv", x, stride=stride)
            if f"{at}5.norm.weight" in self.codec:
                x = self._transformer(f"{at}5.", x, ENCODER_WINDOW)
        x = self._causal(f"encoder.block.{blocks + 2}.conv", self._snake(f"encoder.block.{blocks + 1}.", x))
        for stage in range(_count(self.codec, "quantizer.downsample.")):
            at = f"quantizer.downsample.{stage}."
            factor = self.codec[f"{at}0.conv.weight"].shape[-1]
            x = self._conv_next(f"{at}1.", self._causal(f"{at}0.conv", x, stride=factor))
        rest = self._transformer("quantizer.pre_module.", x, MODULE_WINDOW)
        rows, margin = [], math.inf
        for book in range(1 + _count(self.codec, "quantizer.quantizer.quantizers.")):
            at = _quantizer(book)
            vectors = self.codec[at + "codebook.weight"]
            found = F.normalize(self._conv(at + "in_proj", rest), dim=0)
            likeness = F.normalize(vectors, dim=1) @ found
            best = likeness.topk(2, dim=0)
            margin = min(margin, float((best.values[0] - best.values[1]).min()))
            rows.append(best.indices[0])
            rest = rest - self._conv(at + "out_proj", vectors[rows[-1]].T)
        return torch.stack(rows), margin

    def _conv(self, name: str, x: torch.Tensor, **how: int) -> torch.Tensor:
        return F.conv1d(x[None], self.codec[name + ".weight"], self.codec[name + ".bias"], **how)[0]

    def _causal(self, name: str, x: torch.Tensor, dilation: int = 1, stride: int = 1, groups: int = 1) -> torch.Tensor:
        reach = (self.codec[name + ".weight"].shape[-1] - 1) * dilation + 1
        return self._conv(name, F.pad(x, (reach - stride, 0)), dilation=dilation, stride=stride, groups=groups)

    def _upsampled(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Kernel = twice the stride in the decoder, the stride in the quantizer; what is too much goes at the right."""
        weight = self.codec[name + ".weight"]
        stride = weight.shape[-1] // (1 if "upsample" in name else 2)
        out = F.conv_transpose1d(x[None], weight, self.codec[name + ".bias"], stride=stride)[0]
        return out[:, : x.shape[1] * stride]

    def _snake(self, at: str, x: torch.Tensor) -> torch.Tensor:
        alpha = self.codec[at + "alpha"][0]
        return x + (alpha * x).sin() ** 2 / (alpha + 1e-9)

    def _residual(self, at: str, x: torch.Tensor, dilation: int) -> torch.Tensor:
        inner = self._causal(at + "block.1.conv", self._snake(at + "block.0.", x), dilation)
        return x + self._causal(at + "block.3.conv", self._snake(at + "block.2.", inner))

    def _conv_next(self, at: str, x: torch.Tensor) -> torch.Tensor:
        w = self.codec
        inner = self._causal(at + "dwconv.conv", x, groups=len(x)).T
        inner = F.layer_norm(inner, inner.shape[1:], w[at + "norm.weight"], w[at + "norm.bias"], 1e-6)
        wide = F.gelu(inner @ w[at + "pwconv1.weight"].T + w[at + "pwconv1.bias"])
        return x + (w[at + "gamma"] * (wide @ w[at + "pwconv2.weight"].T + w[at + "pwconv2.bias"])).T

    def _transformer(self, at: str, x: torch.Tensor, window: int) -> torch.Tensor:
        """Columns [dim, n] -> the same."""
        x = x.T
        heads = x.shape[1] // CODEC_HEAD
        for layer in range(_count(self.codec, at + "layers.")):
            name = f"{at}layers.{layer}."
            normed = _rms(x, self.codec[name + "attention_norm.weight"], 1e-5)
            out = _attention(self.codec, name, normed, heads, heads, CODEC_HEAD, 10000.0, 1e-5, window)
            x = x + self.codec[name + "attention_layer_scale.gamma"] * out
            out = _feed_forward(self.codec, name, _rms(x, self.codec[name + "ffn_norm.weight"], 1e-5))
            x = x + self.codec[name + "ffn_layer_scale.gamma"] * out
        return _rms(x, self.codec[at + "norm.weight"], 1e-5).T


def _quantizer(book: int) -> str:
    return "quantizer.semantic_quantizer.quantizers.0." if book == 0 else f"quantizer.quantizer.quantizers.{book - 1}."


def _count(weights: Weights, prefix: str) -> int:
    """How many modules are numbered below `prefix`; activations without weights at the end have a number too."""
    numbers = {int(name.removeprefix(prefix).split(".")[0]) for name in weights if name.startswith(prefix)}
    return max(numbers) + 1


def _without_weight_norm(stored: Weights) -> Weights:
    """g v / |v| over all dimensions but the first, in the older and the newer form of torch's weight_norm."""
    made: Weights = {}
    for name, tensor in stored.items():
        if name.endswith((".parametrizations.weight.original0", ".weight_g")):
            continue
        if name.endswith(".parametrizations.weight.original1"):
            stem = name.removesuffix(".parametrizations.weight.original1")
            made[stem + ".weight"] = _normed(tensor, stored[stem + ".parametrizations.weight.original0"])
        elif name.endswith(".weight_v"):
            stem = name.removesuffix(".weight_v")
            made[stem + ".weight"] = _normed(tensor, stored[stem + ".weight_g"])
        else:
            made[name] = tensor
    return made


def _normed(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return g * v / v.flatten(1).norm(dim=1).view(-1, *[1] * (v.dim() - 1))


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _feed_forward(weights: Weights, at: str, x: torch.Tensor) -> torch.Tensor:
    w1, w2, w3 = (weights[f"{at}feed_forward.w{n}.weight"] for n in (1, 2, 3))
    return (F.silu(x @ w1.T) * (x @ w3.T)) @ w2.T


def _attention(
    weights: Weights,
    at: str,
    x: torch.Tensor,
    heads: int,
    kv_heads: int,
    dim: int,
    theta: float,
    eps: float,
    window: int | None,
) -> torch.Tensor:
    """Causal; queries and keys are normed where there are weights for it, then turned in pairs of neighbours."""
    joined = x @ weights[at + "attention.wqkv.weight"].T
    query, key, value = joined.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
    query, key, value = query.view(-1, heads, dim), key.view(-1, kv_heads, dim), value.view(-1, kv_heads, dim)
    if at + "attention.q_norm.weight" in weights:
        query = _rms(query, weights[at + "attention.q_norm.weight"], eps)
        key = _rms(key, weights[at + "attention.k_norm.weight"], eps)
    query, key = _turned(query, theta), _turned(key, theta)
    places = torch.arange(len(x))
    distance = places[:, None] - places
    hidden = (distance < 0) | (distance >= (window or len(x)))
    out = []
    for head in range(heads):
        of = head // (heads // kv_heads)
        scores = (query[:, head] @ key[:, of].T / math.sqrt(dim)).masked_fill(hidden, -math.inf)
        out.append(scores.softmax(-1) @ value[:, of])
    return torch.cat(out, dim=1) @ weights[at + "attention.wo.weight"].T


def _turned(x: torch.Tensor, theta: float) -> torch.Tensor:
    n, _, dim = x.shape
    angles = torch.arange(n).double()[:, None] * theta ** -(torch.arange(0, dim, 2).double() / dim)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(2)
