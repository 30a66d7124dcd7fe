"""What a pipeline tells its clients about itself."""

from __future__ import annotations

import msgspec


class PipelineInfo(msgspec.Struct, frozen=True):
    """`modalities` are what it answers with; `voices` (with the one that speaks where none is asked for) and
    `sample_rate`, in Hz, are those of its speech. A prompt and its answer together have at most `context` tokens; 0
    where that is not known."""

    modalities: tuple[str, ...] = ("text",)
    voices: tuple[str, ...] = ()
    default_voice: str = ""
    sample_rate: int = 0
    context: int = 0


encode_info = msgspec.json.Encoder().encode
decode_info = msgspec.json.Decoder(PipelineInfo).decode
