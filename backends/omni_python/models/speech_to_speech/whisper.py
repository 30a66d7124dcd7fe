"""Whisper's network (Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision") for one sound
at a time, with the names of Hugging Face's checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.models.loading.checkpoint import CheckpointError, load_config, read_tensors
from omni_python.models.loading.modules import assign, on_meta
from omni_python.models.media.whisper_encoder import Attention, EncoderSizes, Layer, WhisperEncoder


@dataclass(frozen=True)
class WhisperSizes:
    """Of a checkpoint's config.json; the decoder is as wide as the encoder."""

    encoder: EncoderSizes
    decoder_layers: int
    decoder_heads: int
    decoder_inner: int
    vocabulary: int
    text_positions: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> WhisperSizes:
        """Raises `CheckpointError` where a field is missing."""
        try:
            return cls(
                EncoderSizes(
                    mel_bins=config["num_mel_bins"],
                    width=config["d_model"],
                    heads=config["encoder_attention_heads"],
                    inner=config["encoder_ffn_dim"],
                    layers=config["encoder_layers"],
                    positions=config["max_source_positions"],
                ),
                config["decoder_layers"],
                config["decoder_attention_heads"],
                config["decoder_ffn_dim"],
                config["vocab_size"],
                config["max_target_positions"],
            )
        except KeyError as error:
            raise CheckpointError(f"config.json of a Whisper checkpoint needs {error}") from None


class DecoderLayer(Layer):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__(width, heads, inner)
        self.encoder_attn = Attention(width, heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(width)


class TextCache:
    """Keys and values of one sound's decoding: of its encoding, and of the text so far."""

    def __init__(self, decoder: Decoder, sound: torch.Tensor) -> None:
        """`sound` [n, width] is the encoder's output."""
        self.sound = [layer.encoder_attn.keys_values(sound) for layer in decoder.decoder_layers]
        heads, _, head = self.sound[0][0].shape
        shape = (2, heads, decoder.embed_positions.num_embeddings, head)
        self.text = [sound.new_empty(shape) for _ in self.sound]
        self.length = 0


class Decoder(nn.Module):
    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__()
        width = sizes.encoder.width
        self.embed_tokens = nn.Embedding(sizes.vocabulary, width)
        self.embed_positions = nn.Embedding(sizes.text_positions, width)
        self.layers = nn.ModuleList(
            DecoderLayer(width, sizes.decoder_heads, sizes.decoder_inner) for _ in range(sizes.decoder_layers)
        )
        self.layer_norm = nn.LayerNorm(width)

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]

    def forward(self, tokens: torch.Tensor, cache: TextCache) -> torch.Tensor:
        """`tokens` int64 [n], more than one of them only where nothing is cached or all before are -> the logits
        [vocabulary] after the last one. They are cached."""
        start, end = cache.length, cache.length + len(tokens)
        hidden = self.embed_tokens(tokens) + self.embed_positions.weight[start:end]
        for layer, text, sound in zip(self.decoder_layers, cache.text, cache.sound, strict=True):
            normed = layer.self_attn_layer_norm(hidden)
            keys, values = layer.self_attn.keys_values(normed)
            text[0, :, start:end], text[1, :, start:end] = keys, values
            hidden = hidden + self._attend(layer, normed, text[:, :, :end], start)
            normed = layer.encoder_attn_layer_norm(hidden)
            hidden = layer.feed_forward(hidden + layer.encoder_attn(normed, *sound, causal=False))
        cache.length = end
        return F.linear(self.layer_norm(hidden[-1]), self.embed_tokens.weight)

    @staticmethod
    def _attend(layer: DecoderLayer, normed: torch.Tensor, text: torch.Tensor, start: int) -> torch.Tensor:
        if start == 0:
            return layer.self_attn(normed, text[0], text[1], causal=len(normed) > 1)
        rows = [
            layer.self_attn(row[None], text[0, :, : start + n + 1], text[1, :, : start + n + 1], causal=False)
            for n, row in enumerate(normed)
        ]
        return torch.cat(rows)


class Whisper(nn.Module):
    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.encoder = WhisperEncoder(sizes.encoder)
        self.decoder = Decoder(sizes)


def load_whisper(path: str | Path, dtype: torch.dtype, device: str) -> Whisper:
    """A checkpoint in Hugging Face's format. Raises `CheckpointError`."""
    sizes = WhisperSizes.of(load_config(path))
    with on_meta():
        model = Whisper(sizes)
    return assign(model, read_tensors(path, "model.", dtype, device), "recogniser")
