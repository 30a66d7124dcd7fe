"""The pipeline's declaration: preprocessing -> recogniser -> [transcript, reader]; reader -> synthesis.

Text is streamed word by word, what is spoken sentence by sentence.
"""

from __future__ import annotations

from omni_python.config.schema import PipelineConfig, StageConfig

_FAMILY = "omni_python.models.speech_to_speech"


class SpeechToSpeechPipelineConfig(PipelineConfig):
    """Speech in any of Whisper's languages, or text, in; English text and speech out. The networks have a process each,
    so that a sentence is spoken while the next one is recognised."""

    name: str | None = "speech_to_speech"
    info_fn: str | None = f"{_FAMILY}.info.describe"
    terminal_stages_fn: str | None = f"{_FAMILY}.routing.active_terminals"
    stages: list[StageConfig] = [
        StageConfig(
            name="preprocessing",
            process="front",
            factory=f"{_FAMILY}.stages.create_preprocessing",
            next="recogniser",
        ),
        StageConfig(
            name="recogniser",
            process="recogniser",
            factory=f"{_FAMILY}.stages.create_recogniser",
            next=["transcript", "reader"],
            route_fn=f"{_FAMILY}.routing.route_heard",
            stream_to=["transcript", "reader"],
            stream_done_to_fn=f"{_FAMILY}.routing.route_heard",
        ),
        StageConfig(name="transcript", process="front", factory=f"{_FAMILY}.stages.create_transcript", terminal=True),
        StageConfig(
            name="reader",
            process="front",
            factory=f"{_FAMILY}.stages.create_reader",
            next="synthesis",
            stream_to=["synthesis"],
        ),
        StageConfig(name="synthesis", process="speech", factory=f"{_FAMILY}.stages.create_synthesis", terminal=True),
    ]
