"""A session's configuration: what `session.update` changes, and `response.create` for one response."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from omni_python.proto.info import PipelineInfo
from omni_python.serve.openai.errors import ApiError
from omni_python.serve.openai.realtime.silero import weights_file
from omni_python.serve.openai.schema import Body, Count, Number, SamplingFields, Text

SAMPLE_RATE = 24000
"""Hz, where a client asks for nothing else."""

Modalities = Annotated[list[Literal["text", "audio"]], Field(min_length=1, max_length=1)]
"""What to answer with; speech always has its transcript beside it."""
MaxTokens = Count | Literal["inf"]


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


class PcmFormat(Body):
    """16-bit little-endian mono samples."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Annotated[StrictInt, Field(ge=8000, le=48000)] = SAMPLE_RATE


class ServerVad(Body):
    """Turns are found by the server. Silence of `silence_duration_ms` ends one, which then holds the
    `prefix_padding_ms` before its first sound too."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[Number, Field(gt=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[StrictInt, Field(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[StrictInt, Field(ge=50, le=10000)] = 500
    create_response: StrictBool = True
    interrupt_response: StrictBool = True
    idle_timeout_ms: None = None


class AudioInput(Body):
    format: PcmFormat = PcmFormat()
    turn_detection: ServerVad | None = None
    noise_reduction: None = None
    transcription: None = None


class AudioOutput(Body):
    format: PcmFormat = PcmFormat()
    voice: StrictStr | None = None
    speed: Annotated[Number, Field(ge=0.25, le=1.5)] = 1.0


class Audio(Body):
    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class Session(SamplingFields):
    """The whole configuration; as the field of `session.update`, those fields that change."""

    type: Literal["realtime"]
    id: StrictStr | None = None
    model: StrictStr | None = None
    output_modalities: Modalities = ["audio"]
    instructions: Text = ""
    audio: Audio = Audio()
    max_output_tokens: MaxTokens = "inf"

    @classmethod
    def new(cls, model: str, info: PipelineInfo) -> Session:
        """As OpenAI's, a session speaks, and finds turns by itself, unless told otherwise; if it can."""
        detection = ServerVad() if weights_file() is not None else None
        audio = Audio(input=AudioInput(turn_detection=detection))
        answers: Any = ["audio"] if "audio" in info.modalities else ["text"]
        return cls(type="realtime", id=new_id("sess"), model=model, audio=audio, output_modalities=answers)

    def changed(self, change: Session, info: PipelineInfo) -> Session:
        """With the fields that `change` sets. Raises `ApiError` for what this server, or the pipeline, cannot do."""
        for name in ("id", "model"):
            if (asked := getattr(change, name)) not in (None, getattr(self, name)):
                raise ApiError(
                    400, f"A session's {name} cannot be changed to {asked!r}.", "invalid_value", f"session.{name}"
                )
        new = self._with(change.model_dump(exclude_unset=True))
        new._check(info, "session")
        if new.audio.input.turn_detection is not None and weights_file() is None:
            reason = "server_vad needs the package silero-vad (the extra vad of omni_python) on the server"
            raise ApiError(400, f"{reason}; turn_detection must be null.", "unsupported", _DETECTION)
        return new

    def for_response(self, options: ResponseOptions, info: PipelineInfo) -> Session:
        """With what one response asks for. Raises `ApiError` for what the pipeline cannot do."""
        new = self._with(options.model_dump(exclude_unset=True, include=_SHARED))
        new._check(info, "response")
        return new

    def shown(self) -> dict[str, Any]:
        """As JSON for the client, who may send it back."""
        extensions = set(SamplingFields.model_fields)
        return self.model_dump(mode="json", exclude={name for name in extensions if getattr(self, name) is None})

    @property
    def speaks(self) -> bool:
        return "audio" in self.output_modalities

    @property
    def sampling(self) -> dict[str, Any]:
        longest = {} if self.max_output_tokens == "inf" else {"max_tokens": self.max_output_tokens}
        return {**super().sampling, **longest}

    def _check(self, info: PipelineInfo, where: str) -> None:
        voice = self.audio.output.voice
        if self.speaks and "audio" not in info.modalities:
            reason = f'The pipeline {self.model!r} cannot speak; output_modalities must be ["text"]'
            raise ApiError(400, f"{reason}.", "unsupported", f"{where}.output_modalities")
        if voice is not None and voice not in info.voices:
            reason = f"unknown voice {voice!r}; valid: {', '.join(info.voices) or 'none'}"
            raise ApiError(400, reason, "invalid_value", f"{where}.audio.output.voice")

    def _with(self, change: Mapping[str, Any]) -> Session:
        return Session.model_validate(_merged(self.model_dump(exclude_unset=True), change))


class _ResponseOutput(Body):
    format: PcmFormat = PcmFormat()
    voice: StrictStr | None = None


class _ResponseAudio(Body):
    output: _ResponseOutput = _ResponseOutput()


class ResponseOptions(SamplingFields):
    """What `response.create` may ask for one response, beside what it answers."""

    output_modalities: Modalities = ["audio"]
    instructions: Text = ""
    audio: _ResponseAudio = _ResponseAudio()
    max_output_tokens: MaxTokens = "inf"


_SHARED = set(ResponseOptions.model_fields)
_DETECTION = "session.audio.input.turn_detection"


def _merged(old: Any, new: Any) -> Any:
    """`new`, with those fields of `old` that it does not have."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}
