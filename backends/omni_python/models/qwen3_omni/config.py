"""The Qwen3-Omni pipelines' declarations.

preprocessing -> [image_encoder, audio_encoder, mm_aggregate]; encoders -> mm_aggregate -> thinker;
thinker -> [decode, talker_ar]; talker_ar -> code2wav. The thinker streams tokens to decode and talker_ar, the talker
streams codec frames to code2wav.
"""

from __future__ import annotations

from pydantic import JsonValue

from omni_python.config.memory import MEMORY_FRACTION
from omni_python.config.schema import PipelineConfig, StageConfig

_FAMILY = "omni_python.models.qwen3_omni"

_SHARES = {"image_encoder": 0.04, "audio_encoder": 0.025, "thinker": 0.785, "talker_ar": 0.12, "code2wav": 0.025}
"""Of the memory of one GPU that all model stages are put on, in the published size and bfloat16 on 80 GB: weights are
57 GiB of the thinker, 6.8 of the talker, 2.2 of the encoders and 0.4 of the vocoder. On the CPU they say nothing."""


def _share(stage: str) -> dict[str, JsonValue]:
    return {MEMORY_FRACTION: _SHARES[stage]}


_PREPROCESSING = StageConfig(
    name="preprocessing",
    process="front",
    factory=f"{_FAMILY}.front.create_preprocessing",
    next=["image_encoder", "audio_encoder", "mm_aggregate"],
    route_fn=f"{_FAMILY}.routing.route_preprocessed",
    project_payload={
        "image_encoder": f"{_FAMILY}.routing.project_to_image_encoder",
        "audio_encoder": f"{_FAMILY}.routing.project_to_audio_encoder",
        "mm_aggregate": f"{_FAMILY}.routing.project_to_aggregate",
    },
)
_IMAGE_ENCODER = StageConfig(
    name="image_encoder",
    process="front",
    factory=f"{_FAMILY}.front.create_image_encoder",
    factory_args=_share("image_encoder"),
    next="mm_aggregate",
)
_AUDIO_ENCODER = StageConfig(
    name="audio_encoder",
    process="front",
    factory=f"{_FAMILY}.front.create_audio_encoder",
    factory_args=_share("audio_encoder"),
    next="mm_aggregate",
)
_AGGREGATE = StageConfig(
    name="mm_aggregate",
    process="front",
    factory=f"{_FAMILY}.front.create_aggregate",
    wait_for=["preprocessing", "image_encoder", "audio_encoder"],
    wait_for_fn=f"{_FAMILY}.routing.active_sources",
    merge_fn=f"{_FAMILY}.merge.merge_for_thinker",
    next="thinker",
)
_DECODE = StageConfig(name="decode", process="front", factory=f"{_FAMILY}.stages.create_decode", terminal=True)

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Several processes share the cores; threads of one fighting those of another cost more than they gain."""


class Qwen3OmniSpeechPipelineConfig(PipelineConfig):
    """Text, audio, images and video in; text and speech out. Three processes, cheap stages together."""

    name: str | None = "qwen3_omni"
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
            factory_args=_share("thinker"),
            next=["decode", "talker_ar"],
            route_fn=f"{_FAMILY}.routing.route_answer",
            stream_to=["decode", "talker_ar"],
            stream_done_to_fn=f"{_FAMILY}.routing.route_answer",
        ),
        _DECODE,
        StageConfig(
            name="talker_ar",
            process="speech",
            factory=f"{_FAMILY}.stages.create_talker",
            factory_args=_share("talker_ar"),
            next="code2wav",
            stream_to=["code2wav"],
        ),
        StageConfig(
            name="code2wav",
            process="speech",
            factory=f"{_FAMILY}.stages.create_code2wav",
            factory_args=_share("code2wav"),
            terminal=True,
        ),
    ]


def _in_processes(process: str, apart: tuple[str, ...] = ()) -> list[StageConfig]:
    """The speech pipeline's stages, all in one process but those `apart`, which keep theirs."""
    stages: list[StageConfig] = Qwen3OmniSpeechPipelineConfig.model_fields["stages"].default
    return [stage if stage.name in apart else stage.model_copy(update={"process": process}) for stage in stages]


class Qwen3OmniColocatedPipelineConfig(Qwen3OmniSpeechPipelineConfig):
    """All stages in one process, where payloads go by reference: for one small model or one GPU without neighbours."""

    name: str | None = "qwen3_omni_colocated"
    stages: list[StageConfig] = _in_processes("all")


class Qwen3OmniThinkerApartPipelineConfig(Qwen3OmniSpeechPipelineConfig):
    """The thinker in a process (and on a GPU) of its own, all others together: two processes."""

    name: str | None = "qwen3_omni_thinker_apart"
    stages: list[StageConfig] = _in_processes("rest", apart=("thinker",))


class Qwen3OmniTextPipelineConfig(PipelineConfig):
    """Text, audio, images and video in; text out."""

    name: str | None = "qwen3_omni_text"
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
            factory_args={"talker_stage": None, MEMORY_FRACTION: 0.9},
            next="decode",
            stream_to=["decode"],
        ),
        _DECODE,
    ]
