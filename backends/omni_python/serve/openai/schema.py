"""Bodies of requests, in OpenAI's names. Fields that this server does not know are refused, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from omni_python.proto.request import MAX_PARTS
from omni_python.serve.openai.counting import at_most, parts

Text = Annotated[StrictStr, Field(max_length=4 << 20)]
Name = Annotated[StrictStr, Field(min_length=1, max_length=256)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
StopString = Annotated[StrictStr, Field(min_length=1, max_length=256)]
Count = Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]
ChatFormat = Literal["wav", "mp3", "flac", "opus", "aac", "pcm16"]
SpeechFormat = Literal["wav", "mp3", "flac", "opus", "aac", "pcm"]


UNKNOWN_FIELD = "unknown_field"
"""The type of the error for a field that a body does not have; its context holds the `field`."""

# What may be of several kinds has tags in angle brackets: `validation_error` takes them out of the path to a problem.
_TEXT, _LIST = Tag("<text>"), Tag("<list>")


class Body(BaseModel):
    """What clients send: no field beside the declared ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        unknown = (
            next((name for name in data if name not in cls.model_fields), None) if isinstance(data, dict) else None
        )
        if unknown is not None:
            context = {"field": unknown, "fields": ", ".join(cls.model_fields)}
            raise PydanticCustomError(UNKNOWN_FIELD, "supported are {fields}", context)
        return data


def _text_or_list(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list | tuple) else None


def _of_either(valid: str) -> Discriminator:
    """Of a text and a list, tagged `_TEXT` and `_LIST`; `valid` says what else is told to clients."""
    return Discriminator(_text_or_list, custom_error_type="text_or_list", custom_error_message=f"must be {valid}")


def _of_kind(field: str, kinds: str) -> Discriminator:
    """Of objects that tell by `field` what they are: tagged with its value in angle brackets."""

    def tag(value: Any) -> str | None:
        kind = value.get(field) if isinstance(value, dict) else getattr(value, field, None)
        return f"<{kind}>" if isinstance(kind, str) else None

    message = f"must be an object whose {field} is {kinds}"
    return Discriminator(tag, custom_error_type="unknown_kind", custom_error_message=message)


class SamplingFields(Body):
    """How to draw tokens. Beyond OpenAI's: `top_k`, `repetition_penalty`, `ignore_eos`, and `talker`, the speech's own
    sampling parameters."""

    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] | None = None
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


Part = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[InputAudioPart, Tag("<input_audio>")]
    | Annotated[ImageUrlPart, Tag("<image_url>")]
    | Annotated[AudioUrlPart, Tag("<audio_url>")]
    | Annotated[VideoUrlPart, Tag("<video_url>")],
    _of_kind("type", "text, input_audio, image_url, audio_url or video_url"),
]
Spoken = Annotated[
    Annotated[Text, _TEXT] | Annotated[list[TextPart], _LIST], _of_either("a string, or a list of parts of type text")
]
"""What the system or the assistant says."""

Asked = Annotated[Annotated[Text, _TEXT] | Annotated[list[Part], _LIST], _of_either("a string, or a list of parts")]
"""What the user says and shows."""


class _AudioId(Body):
    id: StrictStr


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: Spoken
    name: StrictStr | None = None


class UserMessage(Body):
    role: Literal["user"]
    content: Asked
    name: StrictStr | None = None


class AssistantMessage(Body):
    """What the assistant said before: its text, or the id of its speech, whose transcript is then taken."""

    role: Literal["assistant"]
    content: Spoken | None = None
    audio: _AudioId | None = None
    refusal: None = None
    name: StrictStr | None = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and self.audio is None:
            raise PydanticCustomError("empty", "an assistant's message needs content, or the id of its audio")
        return self


Message = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[SystemMessage, Tag("<developer>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")],
    _of_kind("role", "system, developer, user or assistant"),
]


class AudioOptions(Body):
    voice: StrictStr | None = None
    format: ChatFormat = "wav"


class StreamOptions(Body):
    include_usage: StrictBool = False


class ChatRequest(SamplingFields):
    """`POST /v1/chat/completions`."""

    model: Name
    messages: Annotated[list[Message], Field(min_length=1), at_most(MAX_PARTS, "messages and parts", parts)]
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioOptions | None = None
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    stop: (
        Annotated[
            Annotated[StopString, _TEXT] | Annotated[list[StopString], Field(max_length=16), _LIST],
            _of_either("a string, or a list of strings"),
        ]
        | None
    ) = None
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    n: Literal[1] | None = None
    user: StrictStr | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("together", "stream_options is for requests with stream true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise PydanticCustomError(
                "together", "max_tokens is the old name of max_completion_tokens; give one of them"
            )
        if self.audio is not None and not self.speaks:
            raise PydanticCustomError("together", 'audio is for requests with modalities ["text", "audio"]')
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
    """One element of `omni_timings`: when a stage worked, in seconds since the pipeline admitted the request."""

    stage: str
    start: float
    """It got its first input; of stages that wait for several, the last of those."""
    first: float
    """It gave its first output: a chunk of a stream, or its result."""
    end: float
    """It was done."""


class Completion(BaseModel):
    """OpenAI's chat completion; or, where `object` is "chat.completion.chunk", one event of a stream.

    `omni_timings` is ours, in the order of the starts; in a stream the chunk with the finish reason has it.
    """

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None = None
    omni_timings: list[StageTime] | None = None


class ErrorObject(BaseModel):
    """What is wrong, and with which field (`param`: its path, with dots)."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    error: ErrorObject


class SpeechRequest(Body):
    """`POST /v1/audio/speech`."""

    model: Name
    input: Annotated[Text, Field(min_length=1)]
    voice: StrictStr | None = None
    instructions: Text | None = None
    response_format: SpeechFormat = "mp3"
    speed: Annotated[Number, Field(ge=0.25, le=4)] = 1.0
    stream_format: Literal["audio"] | None = None
    seed: Annotated[StrictInt, Field(ge=0, le=2**63 - 1)] | None = None
