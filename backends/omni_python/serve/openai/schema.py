"""Bodies of requests, in OpenAI's names. Fields that this server does not know are refused, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

Text = Annotated[StrictStr, Field(max_length=4 << 20)]
Number = Annotated[float, Field(allow_inf_nan=False)]
ChatFormat = Literal["wav", "mp3", "flac", "opus", "aac", "pcm16"]
SpeechFormat = Literal["wav", "mp3", "flac", "opus", "aac", "pcm"]


class Body(BaseModel):
    """What clients send: no field beside the declared ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SamplingFields(Body):
    """How to draw tokens. Beyond OpenAI's: `top_k`, `repetition_penalty`, `ignore_eos`, and `talker`, the speech's own
    sampling parameters."""

    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=0)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=10)] | None = None
    seed: Annotated[StrictInt, Field(ge=0, le=2**63 - 1)] | None = None
    ignore_eos: StrictBool | None = None
    talker: dict[str, Any] | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The pipeline's sampling parameters."""
        given = {name: getattr(self, name) for name in SamplingFields.model_fields}
        return {name: value for name, value in given.items() if value is not None}


class TextPart(Body):
    type: Literal["text"]
    text: Text


class _Audio(Body):
    data: StrictStr
    format: StrictStr | None = None


class InputAudioPart(Body):
    type: Literal["input_audio"]
    input_audio: _Audio


class _Url(Body):
    url: StrictStr
    detail: Literal["auto"] | None = None


class ImageUrlPart(Body):
    type: Literal["image_url"]
    image_url: _Url


class AudioUrlPart(Body):
    type: Literal["audio_url"]
    audio_url: _Url


class VideoUrlPart(Body):
    type: Literal["video_url"]
    video_url: _Url


Part = Annotated[TextPart | InputAudioPart | ImageUrlPart | AudioUrlPart | VideoUrlPart, Field(discriminator="type")]


class _AudioId(Body):
    id: StrictStr


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: Text | list[TextPart]
    name: StrictStr | None = None


class UserMessage(Body):
    role: Literal["user"]
    content: Text | list[Part]
    name: StrictStr | None = None


class AssistantMessage(Body):
    """What the assistant said before: its text, or the id of its speech, whose transcript is then taken."""

    role: Literal["assistant"]
    content: Text | list[TextPart] | None = None
    audio: _AudioId | None = None
    refusal: None = None
    name: StrictStr | None = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and self.audio is None:
            raise ValueError("an assistant's message needs content, or the id of its audio")
        return self


Message = Annotated[SystemMessage | UserMessage | AssistantMessage, Field(discriminator="role")]


class AudioOptions(Body):
    voice: StrictStr | None = None
    format: ChatFormat = "wav"


class StreamOptions(Body):
    include_usage: StrictBool = False


class ChatRequest(SamplingFields):
    """`POST /v1/chat/completions`."""

    model: StrictStr
    messages: Annotated[list[Message], Field(min_length=1)]
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioOptions | None = None
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    n: Literal[1] | None = None
    user: StrictStr | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for requests with stream true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens is the old name of max_completion_tokens; give one of them")
        if self.audio is not None and not self.speaks:
            raise ValueError('audio is for requests with modalities ["text", "audio"]')
        return self

    @property
    def speaks(self) -> bool:
        return "audio" in (self.modalities or ())

    @property
    def sampling(self) -> dict[str, Any]:
        own = {
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "max_tokens": self.max_completion_tokens or self.max_tokens,
        }
        return {**super().sampling, **{name: value for name, value in own.items() if value is not None}}


class StageTime(BaseModel):
    """One element of `omni_timings`, which a chat completion has beside its usage, and a stream in the chunk with the
    finish reason: when a stage worked, in seconds since the pipeline admitted the request."""

    stage: str
    start: float
    """It got its first input; of stages that wait for several, the last of those."""
    first: float
    """It gave its first output: a chunk of a stream, or its result."""
    end: float
    """It was done."""


class SpeechRequest(Body):
    """`POST /v1/audio/speech`."""

    model: StrictStr
    input: Annotated[Text, Field(min_length=1)]
    voice: StrictStr | None = None
    instructions: Text | None = None
    response_format: SpeechFormat = "mp3"
    speed: Annotated[Number, Field(ge=0.25, le=4)] = 1.0
    stream_format: Literal["audio"] | None = None
    seed: Annotated[StrictInt, Field(ge=0, le=2**63 - 1)] | None = None
