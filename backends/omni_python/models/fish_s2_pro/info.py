"""What the pipeline tells its clients about a checkpoint."""

from __future__ import annotations

from omni_python.models.fish_s2_pro.architecture import model_config
from omni_python.proto.info import PipelineInfo

SAMPLE_RATE = 44100
"""Hz, of the published codec; no file of the checkpoint says it."""


def describe(model_path: str) -> PipelineInfo:
    """It has no voices of its own: it clones the one that a request brings. Raises `CheckpointError`."""
    return PipelineInfo(("audio",), sample_rate=SAMPLE_RATE, context=model_config(model_path).context)
