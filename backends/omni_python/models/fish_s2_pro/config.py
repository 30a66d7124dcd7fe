"""The S2-Pro pipeline's declaration: preprocessing -> tts_engine -> vocoder, frames streamed to the vocoder."""

from __future__ import annotations

from omni_python.config.memory import MEMORY_FRACTION
from omni_python.config.schema import PipelineConfig, StageConfig

_FAMILY = "omni_python.models.fish_s2_pro"


class FishS2ProPipelineConfig(PipelineConfig):
    """Text and a voice to clone in, speech out. Two processes: the engine's steps wait for no encoding of a voice."""

    name: str | None = "fish_s2_pro"
    info_fn: str | None = f"{_FAMILY}.info.describe"
    env_defaults: dict[str, str] = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    stages: list[StageConfig] = [
        StageConfig(
            name="preprocessing",
            process="front",
            factory=f"{_FAMILY}.stages.create_preprocessing",
            next="tts_engine",
        ),
        StageConfig(
            name="tts_engine",
            process="speech",
            factory=f"{_FAMILY}.stages.create_tts_engine",
            factory_args={MEMORY_FRACTION: 0.75},
            next="vocoder",
            stream_to=["vocoder"],
        ),
        StageConfig(
            name="vocoder",
            process="speech",
            factory=f"{_FAMILY}.stages.create_vocoder",
            factory_args={MEMORY_FRACTION: 0.15},
            terminal=True,
        ),
    ]
