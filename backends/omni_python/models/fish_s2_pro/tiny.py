"""A tiny S2-Pro checkpoint with random weights, the same on every machine, in the published checkpoint's format.

It has every part of the published model, whose names and constants that no file tells it keeps: the rates and codebooks
of the codec, and so 2048 samples a frame at 44.1 kHz. Weights come from numpy's PCG64, one stream a tensor, seeded by
the tensor's name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_python.models.fish_s2_pro.architecture import MODEL_TYPE
from omni_python.models.fish_s2_pro.codec_checkpoint import FILE, HEAD_DIM
from omni_python.models.loading.byte_tokenizer import BYTES, byte_tokenizer
from omni_python.models.loading.tiny import named_noise

HEAD_SCALE = 3.0
"""On what the logits are made of, so greedy choices have clear margins."""

WAVE_SCALE = 0.005
"""On the last convolution: keeps the waveform where tanh does not flatten it, for that hides differences."""

Shapes = dict[str, tuple[int, ...]]

_SPECIAL = (
    "<|end_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
    "<|phoneme_start|>",
    "<|phoneme_end|>",
    "<|text|>",
    "<|voice|>",
    "<|interleave|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
)


def build(out: str | Path, seed: int = 0) -> str:
    """Write a checkpoint directory to `out` (created if missing) and return the SHA-256 of its weights."""
    from safetensors.torch import save

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    config = tiny_config()
    language = _drawn(language_shapes(config), seed)
    embeddings = language["text_model.model.embeddings.weight"]
    embeddings *= HEAD_SCALE / math.sqrt(embeddings.shape[1])
    codec = _drawn(codec_shapes(), seed)
    codec["decoder.model.6.conv.parametrizations.weight.original0"] *= WAVE_SCALE
    (out / "model.safetensors").write_bytes(save(language, metadata={"format": "pt"}))
    torch.save(codec, out / FILE)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    codes = range(config["audio_decoder_config"]["vocab_size"])
    byte_tokenizer([*_SPECIAL, *(f"<|semantic:{code}|>" for code in codes)]).save(str(out / "tokenizer.json"))
    digest = hashlib.sha256()
    for name, tensor in [*sorted(language.items()), *sorted(codec.items())]:
        digest.update(f"{name}|{list(tensor.shape)}|".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def tiny_config() -> dict[str, Any]:
    """The config.json: the published one's fields."""
    codes = 64
    start = BYTES + len(_SPECIAL)
    common = {
        "attention_o_bias": False,
        "attention_qkv_bias": False,
        "dim": 64,
        "head_dim": 16,
        "intermediate_size": 96,
        "n_head": 4,
        "n_local_heads": 2,
        "norm_eps": 1e-6,
        "rope_base": 1000000,
        "use_moe": False,
    }
    audio = {"attention_qk_norm": False, "max_seq_len": 11, "n_layer": 2, "num_codebooks": 10, "text_dim": 64}
    text = {"attention_qk_norm": True, "max_seq_len": 4096, "n_layer": 3, "tie_word_embeddings": True}
    return {
        "model_type": MODEL_TYPE,
        "dtype": "float32",
        "eos_token_id": BYTES + _SPECIAL.index("<|im_end|>"),
        "pad_token_id": BYTES + _SPECIAL.index("<|pad|>"),
        "audio_pad_token_id": BYTES + _SPECIAL.index("<|audio_pad|>"),
        "semantic_start_token_id": start,
        "semantic_end_token_id": start + codes - 1,
        "text_config": {**common, **text, "model_type": "fish_qwen3", "vocab_size": start + codes},
        "audio_decoder_config": {**common, **audio, "model_type": "fish_qwen3_audio_decoder", "vocab_size": codes},
    }


def language_shapes(config: Mapping[str, Any]) -> Shapes:
    """Names and shapes of the language model's tensors in a published checkpoint with this config.json."""
    text, audio = config["text_config"], config["audio_decoder_config"]
    size = text["dim"]
    shapes: Shapes = {
        "text_model.model.embeddings.weight": (text["vocab_size"], size),
        "text_model.model.norm.weight": (size,),
        "audio_decoder.codebook_embeddings.weight": (audio["vocab_size"] * audio["num_codebooks"], size),
        "audio_decoder.embeddings.weight": (audio["vocab_size"], audio["dim"]),
        "audio_decoder.norm.weight": (audio["dim"],),
        "audio_decoder.output.weight": (audio["vocab_size"], audio["dim"]),
    }
    for prefix, part in (("text_model.model.", text), ("audio_decoder.", audio)):
        heads, kv_heads, dim = part["n_head"], part["n_local_heads"], part["head_dim"]
        for layer in range(part["n_layer"]):
            at = f"{prefix}layers.{layer}."
            shapes |= _block(at, part["dim"], (heads + 2 * kv_heads) * dim, heads * dim, part["intermediate_size"])
            if part["attention_qk_norm"]:
                shapes |= {f"{at}attention.{name}_norm.weight": (dim,) for name in "qk"}
    return shapes


def codec_shapes(
    encoder_dim: int = 4,
    decoder_dim: int = 32,
    codebooks: tuple[int, ...] = (64, *[32] * 9),
    encoder_layers: int = 1,
    module_layers: int = 2,
    codebook_dim: int = 8,
) -> Shapes:
    """Names and shapes of the tensors of codec.pth, without the buffers that are computed anew."""
    rates, latent = (2, 4, 8, 8), encoder_dim * 16
    shapes = _conv("encoder.block.0.conv", 1, encoder_dim, 7)
    channels = encoder_dim
    for block, rate in enumerate(rates, start=1):
        at = f"encoder.block.{block}.block."
        shapes |= _units(at, 0, channels) | {f"{at}3.alpha": (1, channels, 1)}
        shapes |= _conv(f"{at}4.conv", channels, 2 * channels, 2 * rate)
        channels *= 2
    shapes |= _transformer("encoder.block.4.block.5.", latent, encoder_layers)
    shapes |= {"encoder.block.5.alpha": (1, channels, 1)} | _conv("encoder.block.6.conv", channels, latent, 3)
    for stage in range(2):
        for way in ("downsample", "upsample"):
            at = f"quantizer.{way}.{stage}."
            shapes |= {f"{at}0.conv.weight": (latent, latent, 2), f"{at}0.conv.bias": (latent,)}
            shapes |= _conv_next(f"{at}1.", latent)
    for module in ("pre_module", "post_module"):
        shapes |= _transformer(f"quantizer.{module}.", latent, module_layers)
    for index, codes in enumerate(codebooks):
        at = f"quantizer.quantizer.quantizers.{index - 1}." if index else "quantizer.semantic_quantizer.quantizers.0."
        shapes[f"{at}codebook.weight"] = (codes, codebook_dim)
        for name, inputs, outputs in (("in_proj", latent, codebook_dim), ("out_proj", codebook_dim, latent)):
            shapes[f"{at}{name}.weight_v"] = (outputs, inputs, 1)
            shapes |= {f"{at}{name}.weight_g": (outputs, 1, 1), f"{at}{name}.bias": (outputs,)}
    shapes |= _conv("decoder.model.0.conv", latent, decoder_dim, 7)
    channels = decoder_dim
    for block, rate in enumerate(reversed(rates), start=1):
        at = f"decoder.model.{block}.block."
        shapes |= {f"{at}0.alpha": (1, channels, 1)} | _conv(f"{at}1.conv", channels, channels // 2, 2 * rate, True)
        channels //= 2
        shapes |= _units(at, 2, channels)
    return shapes | {"decoder.model.5.alpha": (1, channels, 1)} | _conv("decoder.model.6.conv", channels, 1, 7)


def _conv(name: str, inputs: int, outputs: int, kernel: int, transposed: bool = False) -> Shapes:
    first, second = (inputs, outputs) if transposed else (outputs, inputs)
    weight = f"{name}.parametrizations.weight."
    shape = (first, second, kernel)
    return {f"{name}.bias": (outputs,), f"{weight}original0": (first, 1, 1), f"{weight}original1": shape}


def _units(at: str, first: int, channels: int) -> Shapes:
    shapes: Shapes = {}
    for unit in range(first, first + 3):
        for activation, kernel in ((0, 7), (2, 1)):
            shapes[f"{at}{unit}.block.{activation}.alpha"] = (1, channels, 1)
            shapes |= _conv(f"{at}{unit}.block.{activation + 1}.conv", channels, channels, kernel)
    return shapes


def _conv_next(at: str, size: int) -> Shapes:
    return {
        f"{at}gamma": (size,),
        f"{at}dwconv.conv.weight": (size, 1, 7),
        f"{at}dwconv.conv.bias": (size,),
        f"{at}norm.weight": (size,),
        f"{at}norm.bias": (size,),
        f"{at}pwconv1.weight": (4 * size, size),
        f"{at}pwconv1.bias": (4 * size,),
        f"{at}pwconv2.weight": (size, 4 * size),
        f"{at}pwconv2.bias": (size,),
    }


def _transformer(prefix: str, size: int, layers: int) -> Shapes:
    assert size % HEAD_DIM == 0
    shapes: Shapes = {f"{prefix}norm.weight": (size,)}
    for layer in range(layers):
        at = f"{prefix}layers.{layer}."
        shapes |= _block(at, size, 3 * size, size, 3 * size)
        shapes |= {f"{at}{name}_layer_scale.gamma": (size,) for name in ("attention", "ffn")}
    return shapes


def _block(at: str, size: int, joined: int, attended: int, wide: int) -> Shapes:
    return {
        f"{at}attention.wqkv.weight": (joined, size),
        f"{at}attention.wo.weight": (size, attended),
        f"{at}feed_forward.w1.weight": (wide, size),
        f"{at}feed_forward.w3.weight": (wide, size),
        f"{at}feed_forward.w2.weight": (size, wide),
        f"{at}attention_norm.weight": (size,),
        f"{at}ffn_norm.weight": (size,),
    }


def _drawn(shapes: Shapes, seed: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(_random(name, shape, seed)) for name, shape in shapes.items()}


def _random(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Float32 weights with about unit gain."""
    noise = named_noise(name, shape, seed)
    if name.endswith(("alpha", "original0", "weight_g")):  # the latter: the length of a weight's every row
        values = 1.0 + 0.1 * noise
    elif name.endswith("gamma"):  # of residual branches
        values = 0.3 + 0.03 * noise
    elif name.endswith("bias"):
        values = 0.02 * noise
    elif len(shape) == 1:  # norms
        values = 1.0 + 0.1 * noise
    elif "embeddings" in name or "codebook" in name:
        values = noise
    else:
        values = noise / math.sqrt(math.prod(shape[1:]))
        if name == "audio_decoder.output.weight":
            values *= HEAD_SCALE
    return values.astype(np.float32)
