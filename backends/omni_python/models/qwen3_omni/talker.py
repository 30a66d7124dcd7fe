"""The talker: its language model over codec tokens, and the code predictor that completes each frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.cuda_graph import GraphedOnCuda
from omni_python.layers.decoder import Decoder, DecoderConfig
from omni_python.layers.fused_decoder import MAX_ROWS
from omni_python.layers.kv_cache import PAGE_TOKENS, AttentionPlan, KVRow, PagedKVCache
from omni_python.model_runner.sampler import draw
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.modules import on_meta
from omni_python.models.qwen3_omni.weights import decoder_config, fill

RESIDUAL_TOP_K = 50
RESIDUAL_TOP_P = 0.8
"""How residual codes are drawn when the talker samples: fixed in Hugging Face's generation, at temperature 1."""

Completion = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""What `CodePredictor.forward` does."""


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


class CodePredictor(nn.Module):
    """Predicts a frame's remaining codes, group after group, from the talker's hidden state and its first code."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        decoder = decoder_config(config)
        self.groups = config.num_code_groups
        self.model = ResidualDecoder(decoder, config.vocab_size, self.groups)
        self.lm_head = nn.ModuleList(
            nn.Linear(decoder.hidden, config.vocab_size, bias=False) for _ in range(self.groups - 1)
        )
        self._prepared: dict[int, tuple[PagedKVCache, list[AttentionPlan]]] = {}
        self._graphed = GraphedOnCuda(self._complete)
        self.fused: Completion | None = None
        """Does the work in place of this module's own plain operations, where it is set."""

    def forward(
        self, hidden: torch.Tensor, first: torch.Tensor, sampled: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Complete one frame of each row.

        `hidden` [B, H] is the talker's normed output that gave the first code, `first` [B, H] that code's embedding.
        Rows where `sampled` [B] (bool) draw their codes by `uniforms` [B, groups - 1] in 0..1, the others take the
        likeliest. Returns the codes [B, groups - 1] and the sum of their embeddings [B, H].
        """
        rows = len(hidden)
        inputs: tuple[torch.Tensor, ...] = (hidden, first, sampled, uniforms)
        if hidden.is_cuda:  # few sizes, so few graphs
            padding = (1 << (rows - 1).bit_length()) - rows
            inputs = tuple(F.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, padding)) for tensor in inputs)
        codes, total = self._graphed(*inputs)
        return codes[:rows], total[:rows]

    def prepare(self, max_rows: int) -> None:
        """Capture, on a GPU, what `forward` does for each number of rows up to `max_rows`."""
        weight = self.model.norm.weight
        rows = 1
        while weight.is_cuda and rows < 2 * max_rows:
            zeros = weight.new_zeros(rows, len(weight))
            sampled = torch.zeros(rows, dtype=torch.bool, device=weight.device)
            self(zeros, zeros, sampled, torch.zeros(rows, self.groups - 1, device=weight.device))
            rows *= 2

    def _complete(
        self, hidden: torch.Tensor, first: torch.Tensor, sampled: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = len(hidden)
        if self.fused is not None and rows <= MAX_ROWS:
            return self.fused(hidden, first, sampled, uniforms)
        cache, plans = self._prepare(rows, hidden.device)
        x = torch.stack((hidden, first), dim=1).flatten(0, 1)
        codes, total = [], torch.zeros_like(hidden)
        for group, plan in enumerate(plans):
            start = 0 if group == 0 else group + 1
            positions = torch.arange(start, group + 2, device=x.device).repeat(rows).expand(3, -1)
            out, _ = self.model(x, positions, cache, plan)
            logits = self.lm_head[group](out.view(rows, -1, out.shape[-1])[:, -1]).float()
            drawn = draw(logits, RESIDUAL_TOP_K, RESIDUAL_TOP_P, uniforms[:, group])
            code = torch.where(sampled, drawn, logits.argmax(dim=-1))
            x = self.model.codec_embedding[group](code)
            codes.append(code)
            total = total + x
        return torch.stack(codes, dim=1), total

    def _prepare(self, rows: int, device: torch.device) -> tuple[PagedKVCache, list[AttentionPlan]]:
        """A cache with pages for `rows` rows, and the plan of each step: every row starts anew with every frame."""
        if rows not in self._prepared:
            pages = -(-(self.groups + 1) // PAGE_TOKENS)
            owned = [range(row * pages, (row + 1) * pages) for row in range(rows)]
            plans = [
                AttentionPlan.build(
                    [KVRow(own, 0, 2) if group == 0 else KVRow(own, group + 1, 1) for own in owned], device
                )
                for group in range(self.groups - 1)
            ]
            self._prepared[rows] = self.model.new_cache(rows * pages), plans
        return self._prepared[rows]


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
