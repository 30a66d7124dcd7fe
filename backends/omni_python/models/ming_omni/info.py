"""What the Ming-Omni pipelines tell their clients about a checkpoint."""

from __future__ import annotations

from omni_python.models.ming_omni.architecture import thinker_config, vae_config
from omni_python.proto.info import PipelineInfo

OWN_VOICE = "default"
"""What the talker speaks with where it is given no voice: chosen anew by every seed."""


def describe_speech(model_path: str) -> PipelineInfo:
    """Of the pipeline that speaks. Raises `CheckpointError`."""
    rate = vae_config(model_path).sample_rate
    return PipelineInfo(("text", "audio"), (OWN_VOICE,), OWN_VOICE, rate, thinker_config(model_path).context)


def describe_text(model_path: str) -> PipelineInfo:
    """Of the pipeline that answers with text alone. Raises `CheckpointError`."""
    return PipelineInfo(context=thinker_config(model_path).context)
