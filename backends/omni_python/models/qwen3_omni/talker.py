"""The talker: its language model over codec tokens, and the code predictor that completes each frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.decoder import Decoder, DecoderConfig
from omni_python.layers.frame_completer import FrameCompleter
from omni_python.model_runner.sampler import draw
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.modules import on_meta
from omni_python.models.qwen3_omni.weights import decoder_config, fill

RESIDUAL_TOP_K = 50
RESIDUAL_TOP_P = 0.8
"""How residual codes are drawn when the talker samples: fixed in Hugging Face's generation, at temperature 1."""


class ResizeMLP(nn.Module):
    """Projects the thinker's hidden size to the talker's."""

    def __init__(self, size: int, intermediate: int, out: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(size, intermediate)
        self.linear_fc2 = nn.Linear(intermediate, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class CodecDecoder(Decoder):
    """A decoder with the embedding of codec tokens (group 0 and the talker's special tokens)."""

    def __init__(self, config: DecoderConfig, vocab_size: int) -> None:
        super().__init__(config)
        self.codec_embedding = nn.Embedding(vocab_size, config.hidden)


class ResidualDecoder(Decoder):
    """A decoder with one code embedding for each group after the first."""

    def __init__(self, config: DecoderConfig, vocab_size: int, groups: int) -> None:
        super().__init__(config)
        self.codec_embedding = nn.ModuleList(nn.Embedding(vocab_size, config.hidden) for _ in range(groups - 1))


class CodePredictor(FrameCompleter):
    """Predicts a frame's remaining codes, group after group, from the talker's hidden state and its first code.

    Sampling are `sampled` [B] (bool) and `uniforms` [B, groups - 1] in 0..1: rows where `sampled` draw their codes by
    `uniforms`, the others take the likeliest.
    """

    model: ResidualDecoder

    def __init__(self, config: Any) -> None:
        decoder = decoder_config(config)
        super().__init__(ResidualDecoder(decoder, config.vocab_size, config.num_code_groups), config.num_code_groups)
        self.lm_head = nn.ModuleList(
            nn.Linear(decoder.hidden, config.vocab_size, bias=False) for _ in range(self.groups - 1)
        )

    def embed(self, group: int, codes: torch.Tensor) -> torch.Tensor:
        embedding: torch.Tensor = self.model.codec_embedding[group - 1](codes)
        return embedding

    def logits(self, group: int, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head[group - 1](hidden)
        return logits

    def no_sampling(self, rows: int) -> tuple[torch.Tensor, ...]:
        device = self.model.norm.weight.device
        sampled = torch.zeros(rows, dtype=torch.bool, device=device)
        return sampled, torch.zeros(rows, self.groups - 1, device=device)

    def choose(self, group: int, logits: torch.Tensor, sampling: tuple[torch.Tensor, ...]) -> torch.Tensor:
        sampled, uniforms = sampling
        drawn = draw(logits, RESIDUAL_TOP_K, RESIDUAL_TOP_P, uniforms[:, group - 1])
        return torch.where(sampled, drawn, logits.argmax(dim=-1))


class Talker(nn.Module):
    """`config` is the `talker_config` of a `Qwen3OmniMoeConfig`; names of weights are those of published checkpoints.

    `thinker_embedding` is a copy of the thinker's token embedding: what the talker reads of the text are token ids.
    """

    def __init__(self, config: Any, thinker_vocab: int) -> None:
        super().__init__()
        text = config.text_config
        size = (config.thinker_hidden_size, text.intermediate_size, text.hidden_size)
        self.thinker_embedding = nn.Embedding(thinker_vocab, config.thinker_hidden_size)
        self.model = CodecDecoder(decoder_config(text), text.vocab_size)
        self.codec_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.text_projection = ResizeMLP(*size)
        self.hidden_projection = ResizeMLP(*size)
        self.code_predictor = CodePredictor(config.code_predictor_config)

    def project_text(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [n] of the thinker's vocabulary -> [n, hidden]."""
        return self.text_projection(self.thinker_embedding(ids))


def load_talker(
    path: str | Path, config: Any, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto"
) -> Talker:
    """The talker of the checkpoint at `path`, whose `Qwen3OmniMoeConfig` is `config`."""
    if is_dummy(load_format):
        with on_meta():
            talker = Talker(config.talker_config, config.thinker_config.text_config.vocab_size)
        return draw_weights(talker, dtype, device)
    tensors = read_tensors(path, "talker.", dtype, device)
    tensors["thinker_embedding.weight"] = read_tensors(path, "thinker.model.embed_tokens.", dtype, device)["weight"]
    with on_meta():
        talker = Talker(config.talker_config, config.thinker_config.text_config.vocab_size)
    return fill(talker, tensors, "talker")
