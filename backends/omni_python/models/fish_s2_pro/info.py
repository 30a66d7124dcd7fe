"""What the pipeline tells its clients about a checkpoint."""

from __future__ import annotations

from omni_python.models.fish_s2_pro.architecture import model_config
from omni_python.proto.info import PipelineInfo

SAMPLE_RATE = 44100
"""Hz, of the published codec; no file of the checkpoint says it."""


OWN_VOICE = "default"
"""What the model speaks with where no voice is given to clone: chosen anew by every seed."""


def describe(model_path: str) -> PipelineInfo:
    """Raises `CheckpointError`."""
    return PipelineInfo(("audio",), (OWN_VOICE,), OWN_VOICE, SAMPLE_RATE, model_config(model_path).context)
