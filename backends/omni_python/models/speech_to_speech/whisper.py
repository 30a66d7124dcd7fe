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


@dataclass(frozen=True)
class WhisperSizes:
    """Of a checkpoint's config.json. The encoder gives one of at most `sound_positions` vectors for two mel frames."""

    width: int
    mel_bins: int
    encoder_layers: int
    encoder_heads: int
    encoder_inner: int
    decoder_layers: int
    decoder_heads: int
    decoder_inner: int
    vocabulary: int
    sound_positions: int
    text_positions: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> WhisperSizes:
        """Raises `CheckpointError` where a field is missing."""
        try:
            return cls(
                config["d_model"],
                config["num_mel_bins"],
                config["encoder_layers"],
                config["encoder_attention_heads"],
                config["encoder_ffn_dim"],
                config["decoder_layers"],
                config["decoder_attention_heads"],
                config["decoder_ffn_dim"],
                config["vocab_size"],
                config["max_source_positions"],
                config["max_target_positions"],
            )
        except KeyError as error:
            raise CheckpointError(f"config.json of a Whisper checkpoint needs {error}") from None


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def keys_values(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of [n, width]: each [heads, n, head width]."""
        return self._split(self.k_proj(hidden)), self._split(self.v_proj(hidden))

    def forward(self, hidden: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool) -> torch.Tensor:
        """`hidden` [n, width]. With `causal` the keys are of the n positions themselves."""
        queries = self._split(self.q_proj(hidden))
        mixed = F.scaled_dot_product_attention(queries[None], keys[None], values[None], is_causal=causal)[0]
        projected: torch.Tensor = self.out_proj(mixed.transpose(0, 1).flatten(1))
        return projected

    def _split(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (self._heads, -1)).transpose(0, 1)


class Layer(nn.Module):
    """Of the encoder; that of the decoder also attends to the sound."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def feed_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.fc2(F.gelu(self.fc1(self.final_layer_norm(hidden))))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.self_attn_layer_norm(hidden)
        hidden = hidden + self.self_attn(normed, *self.self_attn.keys_values(normed), causal=False)
        return self.feed_forward(hidden)


class Encoder(nn.Module):
    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(sizes.mel_bins, sizes.width, 3, padding=1)
        self.conv2 = nn.Conv1d(sizes.width, sizes.width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(sizes.sound_positions, sizes.width)
        self.layers = nn.ModuleList(
            Layer(sizes.width, sizes.encoder_heads, sizes.encoder_inner) for _ in range(sizes.encoder_layers)
        )
        self.layer_norm = nn.LayerNorm(sizes.width)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """`mel` [mel bins, 2n] -> [n, width]."""
        hidden = F.gelu(self.conv2(F.gelu(self.conv1(mel[None]))))[0].T
        hidden = hidden + self.embed_positions.weight[: len(hidden)]
        for layer in self.layers:
            hidden = layer(hidden)
        normed: torch.Tensor = self.layer_norm(hidden)
        return normed


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
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.embed_positions = nn.Embedding(sizes.text_positions, sizes.width)
        self.layers = nn.ModuleList(
            DecoderLayer(sizes.width, sizes.decoder_heads, sizes.decoder_inner) for _ in range(sizes.decoder_layers)
        )
        self.layer_norm = nn.LayerNorm(sizes.width)

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
        self.encoder = Encoder(sizes)
        self.decoder = Decoder(sizes)


def load_whisper(path: str | Path, dtype: torch.dtype, device: str) -> Whisper:
    """A checkpoint in Hugging Face's format. Raises `CheckpointError`."""
    sizes = WhisperSizes.of(load_config(path))
    with on_meta():
        model = Whisper(sizes)
    return assign(model, read_tensors(path, "model.", dtype, device), "recogniser")
