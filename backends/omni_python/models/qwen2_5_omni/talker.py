"""The talker: a decoder from the thinker's states and the codes so far to the next code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from omni_python.layers.decoder import Decoder
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.modules import assign, on_meta
from omni_python.models.qwen2_5_omni.architecture import decoder_config


@dataclass(frozen=True)
class TalkerTokens:
    """Ids of the codec's vocabulary: what stands in the prompt in place of codes (`mask`, then `pad` and `begin`), and
    what ends the speech. `codes` are the ids that the waveform's model knows."""

    mask: int
    pad: int
    begin: int
    ends: frozenset[int]
    codes: int

    @staticmethod
    def of(config: Any) -> TalkerTokens:
        """From a `Qwen2_5OmniConfig`. Both the pad and the end token end the speech, as in Hugging Face's generation,
        and of the codes one more is known than the config says, as there."""
        talker = config.talker_config
        return TalkerTokens(
            mask=talker.tts_codec_mask_token_id,
            pad=talker.tts_codec_pad_token_id,
            begin=talker.tts_codec_start_token_id,
            ends=frozenset((talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id)),
            codes=config.token2wav_config.dit_config.num_embeds + 1,
        )


class Talker(nn.Module):
    """Names of weights are those of published checkpoints, but for `embed_tokens`, there in `model`."""

    def __init__(self, config: Any) -> None:
        """`config` is a `Qwen2_5OmniTalkerConfig`."""
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.thinker_to_talker_proj = nn.Linear(config.embedding_size, config.hidden_size)
        self.model = Decoder(decoder_config(config))
        self.codec_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)


def load_talker(path: str | Path, config: Any, dtype: torch.dtype, device: str) -> Talker:
    """The talker of the checkpoint at `path`, whose `Qwen2_5OmniConfig` is `config`. Raises `CheckpointError`."""
    with on_meta():
        talker = Talker(config.talker_config)
    tensors = read_tensors(path, "talker.", dtype, device)
    embedding = tensors.pop("model.embed_tokens.weight", None)
    if embedding is not None:
        tensors["embed_tokens.weight"] = embedding
    return assign(talker, tensors, "talker")


def thinker_embeddings(path: str | Path, ids: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """[n, H] of the thinker's `ids`."""
    table = read_tensors(path, "thinker.model.embed_tokens.")["weight"]
    return table[list(ids)].to(device, dtype)
