"""What the Qwen3-Omni pipelines tell their clients about a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omni_python.models.loading.checkpoint import load_config
from omni_python.models.qwen3_omni.code2wav import SAMPLE_RATE
from omni_python.proto.info import PipelineInfo


def describe_speech(model_path: str) -> PipelineInfo:
    """Of a pipeline that speaks. Raises `CheckpointError`."""
    config = load_config(model_path)
    names = voices(config)
    return PipelineInfo(("text", "audio"), tuple(names), default_voice(names), SAMPLE_RATE, context(config))


def describe_text(model_path: str) -> PipelineInfo:
    """Of a pipeline that answers with text alone. Raises `CheckpointError`."""
    return PipelineInfo(context=context(load_config(model_path)))


def voices(config: Mapping[str, Any]) -> list[str]:
    """The names of a checkpoint's voices, sorted; none where it cannot speak. `config` is its config.json."""
    return sorted((config.get("talker_config") or {}).get("speaker_id") or {})


def default_voice(names: Sequence[str]) -> str:
    """Of these voices the one that speaks where none is asked for; "" where there is none."""
    return "ethan" if "ethan" in names else next(iter(names), "")


def context(config: Mapping[str, Any]) -> int:
    """Tokens of a prompt and its answer together."""
    return int(config["thinker_config"]["text_config"]["max_position_embeddings"])
