"""A client's request to what is to be said: every check of what a client may ask is here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.speech_to_speech.info import RECOGNISER, default_voice, voices
from omni_python.models.speech_to_speech.mel import SAMPLE_RATE
from omni_python.models.speech_to_speech.payloads import Utterance
from omni_python.models.speech_to_speech.recogniser import TRANSCRIBE, languages
from omni_python.preprocessing.audio import read_audio
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart, Message, OmniRequest, TextPart

_MODALITIES = ("text", "audio")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may ask as `sampling_parameters`.

    `task` "translate" makes English of everything, "transcribe" writes down what was said; `language` (ISO 639) is
    found out where it is not given; `speed` is that of the speech; at most `max_tokens` are heard.
    """

    task: Literal["translate", "transcribe"] = "translate"
    language: str | None = None
    speed: Annotated[float, msgspec.Meta(ge=0.5, le=2.0)] = 1.0
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 8192


class Preprocessor:
    """OmniRequest -> Utterance: what the last message's sounds say and its texts, in their order.

    Earlier messages are not looked at: the pipeline repeats in English, it does not answer. What a client asks wrongly
    raises `InvalidArgument`, which says what would be valid.
    """

    def __init__(self, model_path: str | Path, media: MediaLoader, seconds: float = 600.0) -> None:
        """At most `seconds` of all sounds of a request together are heard."""
        self._languages = languages(load_tokenizer(Path(model_path) / RECOGNISER))
        self._voices = voices(model_path)
        self._media = media
        self._seconds = seconds

    def __call__(self, request: OmniRequest) -> Utterance:
        options = self._options(request.sampling)
        speech = _speaks(request)
        if speech and options.task == TRANSCRIBE and options.language not in (None, "en"):
            raise InvalidArgument(
                f"sampling_parameters: only English can be spoken; to transcribe {options.language!r} ask for "
                'modalities ["text"], to hear it in English for the task "translate"'
            )
        return Utterance(
            self._parts(request),
            options.task,
            options.language,
            options.max_tokens,
            self._voice(request.voice),
            options.speed,
            speech,
            request.stream,
        )

    def _options(self, given: dict[str, Any]) -> Options:
        try:
            options = msgspec.convert(given, Options)
        except msgspec.ValidationError as error:
            valid = ", ".join(Options.__struct_fields__)
            raise InvalidArgument(f"sampling_parameters: {error}; valid keys: {valid}") from None
        if options.language is not None and options.language not in self._languages:
            raise InvalidArgument(
                f"sampling_parameters.language: unknown language {options.language!r}; "
                f"valid: {', '.join(sorted(self._languages))}"
            )
        return options

    def _voice(self, asked: str | None) -> str:
        if asked is None:
            return default_voice(self._voices)
        if asked.lower() not in self._voices:
            raise InvalidArgument(f"voice: unknown voice {asked!r}; valid: {', '.join(self._voices)}")
        return asked.lower()

    def _parts(self, request: OmniRequest) -> list[TextPart | AudioPart]:
        last = _last(request)
        if not all(isinstance(part, TextPart | AudioPart) for part in last.content):
            raise InvalidArgument("this pipeline takes text and sound alone, no images and videos")
        seconds, parts = self._seconds, list[TextPart | AudioPart]()
        for part in self._media.load(msgspec.structs.replace(request, messages=[last])).messages[0].content:
            if isinstance(part, AudioPart):
                samples = read_audio(part, SAMPLE_RATE, seconds)
                seconds -= len(samples) / SAMPLE_RATE
                parts.append(AudioPart(samples=samples, sample_rate=SAMPLE_RATE))
            elif isinstance(part, TextPart) and part.text.strip():
                parts.append(part)
        if not parts:
            raise InvalidArgument("the request has no sound and no text")
        return parts


def _last(request: OmniRequest) -> Message:
    if not request.messages:
        raise InvalidArgument("the request has no message and no text")
    last = request.messages[-1]
    if last.role != "user":
        raise InvalidArgument(f"the last message must be the user's, not the {last.role}'s")
    return last


def _speaks(request: OmniRequest) -> bool:
    if request.echo:
        raise InvalidArgument("exclude_input_in_output: this pipeline's text is the input's; it is not repeated")
    if request.modalities is None:
        return True
    if unknown := sorted(set(request.modalities) - set(_MODALITIES)):
        raise InvalidArgument(f"modalities: unknown modality {unknown[0]!r}; valid: {', '.join(_MODALITIES)}")
    return "audio" in request.modalities
