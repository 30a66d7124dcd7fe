"""The Qwen2.5-Omni pipeline's declaration: preprocessing -> [media_encoder ->] thinker -> [decode, talker];
talker -> token2wav. The thinker streams tokens to decode and its states to the talker, the talker streams codes to
token2wav."""

from __future__ import annotations

from omni_python.config.memory import MEMORY_FRACTION
from omni_python.config.schema import PipelineConfig, StageConfig

_FAMILY = "omni_python.models.qwen2_5_omni"


class Qwen25OmniPipelineConfig(PipelineConfig):
    """Text, audio, images and video in; text and speech out. Three processes, cheap stages together."""

    name: str | None = "qwen2_5_omni"
    terminal_stages_fn: str | None = f"{_FAMILY}.routing.active_terminals"
    info_fn: str | None = f"{_FAMILY}.info.describe"
    env_defaults: dict[str, str] = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    stages: list[StageConfig] = [
        StageConfig(
            name="preprocessing",
            process="front",
            factory=f"{_FAMILY}.stages.create_preprocessing",
            next=["thinker", "media_encoder"],
            route_fn=f"{_FAMILY}.routing.route_question",
        ),
        StageConfig(
            name="media_encoder",
            process="front",
            factory=f"{_FAMILY}.stages.create_media_encoder",
            factory_args={MEMORY_FRACTION: 0.05},
            next="thinker",
        ),
        StageConfig(
            name="thinker",
            process="thinker",
            factory=f"{_FAMILY}.stages.create_thinker",
            factory_args={MEMORY_FRACTION: 0.5},
            next=["decode", "talker"],
            route_fn=f"{_FAMILY}.routing.route_answer",
            stream_to=["decode", "talker"],
            stream_done_to_fn=f"{_FAMILY}.routing.route_answer",
        ),
        StageConfig(name="decode", process="front", factory=f"{_FAMILY}.stages.create_decode", terminal=True),
        StageConfig(
            name="talker",
            process="speech",
            factory=f"{_FAMILY}.stages.create_talker",
            factory_args={MEMORY_FRACTION: 0.3},
            next="token2wav",
            stream_to=["token2wav"],
        ),
        StageConfig(
            name="token2wav",
            process="speech",
            factory=f"{_FAMILY}.stages.create_token2wav",
            factory_args={MEMORY_FRACTION: 0.1},
            terminal=True,
        ),
    ]
