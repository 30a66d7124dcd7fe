"""What the Ming-Omni pipelines tell their clients about a checkpoint."""

from __future__ import annotations

from omni_python.models.ming_omni.architecture import thinker_config, vae_config
from omni_python.models.ming_omni.voices import default_voice, voice_names
from omni_python.proto.info import PipelineInfo


def describe_speech(model_path: str) -> PipelineInfo:
    """Of the pipeline that speaks. Raises `CheckpointError`."""
    names, rate = voice_names(model_path), vae_config(model_path).sample_rate
    return PipelineInfo(("text", "audio"), tuple(names), default_voice(names), rate, thinker_config(model_path).context)


def describe_text(model_path: str) -> PipelineInfo:
    """Of the pipeline that answers with text alone. Raises `CheckpointError`."""
    return PipelineInfo(context=thinker_config(model_path).context)
