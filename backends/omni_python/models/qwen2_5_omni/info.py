"""What the pipelines tell their clients about a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omni_python.models.loading.checkpoint import load_config
from omni_python.models.qwen2_5_omni.voices import load_voices
from omni_python.proto.info import PipelineInfo

SAMPLE_RATE = 24000
"""Hz, of the published model's speech; no file of the checkpoint says it."""

DEFAULT_CONTEXT = 32768
"""Of transformers' `Qwen2_5OmniTextConfig`."""


def describe(model_path: str) -> PipelineInfo:
    """Raises `CheckpointError`."""
    names = tuple(load_voices(model_path))
    return PipelineInfo(("text", "audio"), names, default_voice(names), SAMPLE_RATE, context(load_config(model_path)))


def default_voice(names: Iterable[str]) -> str:
    """Hugging Face's, where there is a voice of that name, else the first."""
    return "chelsie" if "chelsie" in names else next(iter(names), "")


def context(config: Mapping[str, Any]) -> int:
    """Tokens of a prompt and its answer together; `config` is a checkpoint's config.json."""
    text = config.get("thinker_config", {}).get("text_config", {})
    return int(text.get("max_position_embeddings", DEFAULT_CONTEXT))
