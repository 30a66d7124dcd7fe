"""The Ming-Omni pipelines' declarations.

preprocessing -> [image_encoder, audio_encoder, mm_aggregate]; encoders -> mm_aggregate -> thinker -> [decode,
segmenter]; segmenter -> talker -> audio_vae. The thinker streams tokens, the segmenter pieces of text, the talker
latents. `image_generation` is declared and refused: see its factory.
"""

from __future__ import annotations

from omni_python.config.memory import MEMORY_FRACTION
from omni_python.config.schema import PipelineConfig, StageConfig

_FAMILY = "omni_python.models.ming_omni"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Several processes share the cores; threads of one fighting those of another cost more than they gain."""

_PREPROCESSING = StageConfig(
    name="preprocessing",
    process="front",
    factory=f"{_FAMILY}.stages.create_preprocessing",
    next=["image_encoder", "audio_encoder", "mm_aggregate"],
    route_fn=f"{_FAMILY}.routing.route_read",
    project_payload={
        "image_encoder": f"{_FAMILY}.routing.project_to_image_encoder",
        "audio_encoder": f"{_FAMILY}.routing.project_to_audio_encoder",
        "mm_aggregate": f"{_FAMILY}.routing.project_to_aggregate",
    },
)
_IMAGE_ENCODER = StageConfig(
    name="image_encoder",
    process="front",
    factory=f"{_FAMILY}.stages.create_image_encoder",
    factory_args={MEMORY_FRACTION: 0.02},
    next="mm_aggregate",
)
_AUDIO_ENCODER = StageConfig(
    name="audio_encoder",
    process="front",
    factory=f"{_FAMILY}.stages.create_audio_encoder",
    factory_args={MEMORY_FRACTION: 0.01},
    next="mm_aggregate",
)
_AGGREGATE = StageConfig(
    name="mm_aggregate",
    process="front",
    factory=f"{_FAMILY}.stages.create_aggregate",
    wait_for=["preprocessing", "image_encoder", "audio_encoder"],
    wait_for_fn=f"{_FAMILY}.routing.active_sources",
    merge_fn=f"{_FAMILY}.merge.merge_for_thinker",
    next="thinker",
)
_DECODE = StageConfig(name="decode", process="front", factory=f"{_FAMILY}.stages.create_decode", terminal=True)
_IMAGE_GENERATION = StageConfig(
    name="image_generation", process="front", factory=f"{_FAMILY}.stages.create_image_generation", terminal=True
)


class MingOmniSpeechPipelineConfig(PipelineConfig):
    """Text, sound, pictures and video in; text and speech out. Three processes, cheap stages together."""

    name: str | None = "ming_omni"
    terminal_stages_fn: str | None = f"{_FAMILY}.routing.active_terminals"
    info_fn: str | None = f"{_FAMILY}.info.describe_speech"
    env_defaults: dict[str, str] = _ONE_THREAD
    stages: list[StageConfig] = [
        _PREPROCESSING,
        _IMAGE_ENCODER,
        _AUDIO_ENCODER,
        _AGGREGATE,
        StageConfig(
            name="thinker",
            process="thinker",
            factory=f"{_FAMILY}.stages.create_thinker",
            factory_args={MEMORY_FRACTION: 0.87},
            next=["decode", "segmenter", "image_generation"],
            route_fn=f"{_FAMILY}.routing.route_answer",
            stream_to=["decode", "segmenter"],
            stream_done_to_fn=f"{_FAMILY}.routing.route_answer",
        ),
        _DECODE,
        StageConfig(
            name="segmenter",
            process="speech",
            factory=f"{_FAMILY}.stages.create_segmenter",
            next="talker",
            stream_to=["talker"],
        ),
        StageConfig(
            name="talker",
            process="speech",
            factory=f"{_FAMILY}.stages.create_talker",
            factory_args={MEMORY_FRACTION: 0.06},
            next="audio_vae",
            stream_to=["audio_vae"],
        ),
        StageConfig(
            name="audio_vae",
            process="speech",
            factory=f"{_FAMILY}.stages.create_audio_vae",
            factory_args={MEMORY_FRACTION: 0.03},
            terminal=True,
        ),
        _IMAGE_GENERATION,
    ]


class MingOmniTextPipelineConfig(PipelineConfig):
    """Text, sound, pictures and video in; text out."""

    name: str | None = "ming_omni_text"
    terminal_stages_fn: str | None = f"{_FAMILY}.routing.active_text_terminals"
    info_fn: str | None = f"{_FAMILY}.info.describe_text"
    env_defaults: dict[str, str] = _ONE_THREAD
    stages: list[StageConfig] = [
        _PREPROCESSING.model_copy(update={"factory_args": {"speech": False}}),
        _IMAGE_ENCODER,
        _AUDIO_ENCODER,
        _AGGREGATE,
        StageConfig(
            name="thinker",
            process="thinker",
            factory=f"{_FAMILY}.stages.create_thinker",
            factory_args={"speech_stage": None, MEMORY_FRACTION: 0.9},
            next=["decode", "image_generation"],
            route_fn=f"{_FAMILY}.routing.route_text",
            stream_to=["decode"],
        ),
        _DECODE,
        _IMAGE_GENERATION,
    ]
