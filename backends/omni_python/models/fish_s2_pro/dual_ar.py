"""The language model: a trunk over the text and the frames so far, and a head that completes each frame."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from omni_python.layers.decoder import Decoder
from omni_python.layers.frame_completer import FrameCompleter
from omni_python.model_runner.sampler import draw
from omni_python.models.fish_s2_pro.architecture import S2Config
from omni_python.models.fish_s2_pro.weights import renamed
from omni_python.models.loading.checkpoint import CheckpointError, read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.modules import assign, on_meta

_LEAST = 1e-5
"""Below this, temperature and top_p are as good as 0."""


class CodebookHead(FrameCompleter):
    """The fast decoder: all codebooks have one embedding and one output.

    Sampling are `temperature`, `top_p` [B], int64 `top_k` [B] (0: all) and `uniforms` [B, books - 1] in 0..1; rows of
    temperature 0 take the likeliest code.
    """

    def __init__(self, config: S2Config) -> None:
        super().__init__(Decoder(config.head), config.books)
        self.embeddings = nn.Embedding(config.codes, config.head.hidden)
        self.output = nn.Linear(config.head.hidden, config.codes, bias=False)

    def embed(self, group: int, codes: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self.embeddings(codes)
        return embeds

    def logits(self, group: int, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(hidden)
        return logits

    def no_sampling(self, rows: int) -> tuple[torch.Tensor, ...]:
        zeros = torch.zeros(rows, device=self.output.weight.device)
        return zeros, zeros, zeros.long(), zeros[:, None].expand(-1, self.groups - 1)

    def choose(self, group: int, logits: torch.Tensor, sampling: tuple[torch.Tensor, ...]) -> torch.Tensor:
        temperature, top_p, top_k, uniforms = sampling
        scaled = logits / temperature.clamp(min=_LEAST)[:, None]
        drawn = draw(scaled, top_k, top_p.clamp(min=_LEAST), uniforms[:, group - 1])
        return torch.where(temperature > 0, drawn, logits.argmax(dim=-1))


class DualAR(nn.Module):
    """Both decoders and their embeddings.

    `speak` gives logits of the frames' first codes and, last, of the end of speech: of the vocabulary no other token
    may follow, so the others' rows of the tied embedding are not read.
    """

    def __init__(self, config: S2Config) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocab, config.trunk.hidden)
        self.codebook_embeddings = nn.Embedding(config.codes * config.books, config.trunk.hidden)
        self.trunk = Decoder(config.trunk)
        self.head = CodebookHead(config)
        self.speak = nn.Linear(config.trunk.hidden, config.codes + 1, bias=False)

    def embed_frames(self, codes: torch.Tensor) -> torch.Tensor:
        """The trunk's input for frames `codes` int64 [n, books]: [n, hidden]."""
        offsets = torch.arange(self.config.books, device=codes.device) * self.config.codes
        total = self.codebook_embeddings(codes + offsets).sum(dim=1)
        tokens = self.embeddings(codes[:, 0] + self.config.semantic_start)
        scaled: torch.Tensor = (tokens + total) / math.sqrt(self.config.books + 1)
        return scaled

    def embed_prompt(self, tokens: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """[P, hidden] of `tokens` int64 [P]; `codes` int64 [books, n] are those of its n semantic tokens."""
        embeds: torch.Tensor = self.embeddings(tokens)
        semantic = (tokens >= self.config.semantic_start) & (tokens < self.config.semantic_start + self.config.codes)
        return embeds.index_copy(0, semantic.nonzero()[:, 0], self.embed_frames(codes.T))


def load_dual_ar(
    path: str | Path, config: S2Config, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto"
) -> DualAR:
    """The language model of the checkpoint at `path`. Raises `CheckpointError`."""
    with on_meta():
        model = DualAR(config)
    if is_dummy(load_format):
        return draw_weights(model, dtype, device)
    tensors: dict[str, torch.Tensor] = {}
    trunk, head = config.trunk, config.head
    for name, tensor in read_tensors(path, "text_model.model.", dtype, device).items():
        place = "" if name == "embeddings.weight" else "trunk."
        new = renamed(name, tensor, trunk.heads, trunk.kv_heads, trunk.head_dim)
        tensors |= {place + key: value for key, value in new.items()}
    for name, tensor in read_tensors(path, "audio_decoder.", dtype, device).items():
        place = "head.model."
        if name.startswith(("embeddings.", "output.")):
            place = "head."
        elif name.startswith("codebook_embeddings."):
            place = ""
        new = renamed(name, tensor, head.heads, head.kv_heads, head.head_dim)
        tensors |= {place + key: value for key, value in new.items()}
    embeddings = tensors.get("embeddings.weight")
    if embeddings is None:
        raise CheckpointError(f"checkpoint {str(path)!r} has no tensor 'text_model.model.embeddings.weight'")
    start = config.semantic_start
    rows = (embeddings[start : start + config.codes], embeddings[config.end : config.end + 1])
    tensors["speak.weight"] = torch.cat(rows)
    return assign(model, tensors, "language model")
