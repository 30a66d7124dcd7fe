"""The thinker's language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from omni_python.layers.language_model import LanguageModel
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.modules import on_meta
from omni_python.models.qwen3_omni.weights import decoder_config, fill


class Thinker(LanguageModel):
    """`text_config` is the thinker's of a `Qwen3OmniMoeConfig`."""

    def __init__(self, text_config: Any) -> None:
        super().__init__(decoder_config(text_config), text_config.vocab_size)


def load_thinker(
    path: str | Path, config: Any, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto"
) -> Thinker:
    """The thinker of the checkpoint at `path`, whose `Qwen3OmniMoeConfig` is `config`."""
    text = config.thinker_config.text_config
    if is_dummy(load_format):
        with on_meta():
            thinker = Thinker(text)
        return draw_weights(thinker, dtype, device)
    tensors = {f"model.{name}": t for name, t in read_tensors(path, "thinker.model.", dtype, device).items()}
    if text.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    else:
        tensors["lm_head.weight"] = read_tensors(path, "thinker.lm_head.", dtype, device)["weight"]
    with on_meta():
        thinker = Thinker(text)
    return fill(thinker, tensors, "thinker")
