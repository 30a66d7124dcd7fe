"""The thinker's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from omni_python.layers.language_model import LanguageModel
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.modules import assign, on_meta
from omni_python.models.qwen2_5_omni.architecture import decoder_config


def load_thinker(path: str | Path, config: Any, dtype: torch.dtype, device: str) -> LanguageModel:
    """The thinker of the checkpoint at `path`, whose `Qwen2_5OmniConfig` is `config`. Raises `CheckpointError`."""
    text = config.thinker_config.text_config
    with on_meta():
        thinker = LanguageModel(decoder_config(text), text.vocab_size)
    tensors = {f"model.{name}": t for name, t in read_tensors(path, "thinker.model.", dtype, device).items()}
    if config.thinker_config.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    else:
        tensors["lm_head.weight"] = read_tensors(path, "thinker.lm_head.", dtype, device)["weight"]
    return assign(thinker, tensors, "thinker")
