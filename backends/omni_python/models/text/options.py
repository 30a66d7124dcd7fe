"""What a client asks of the stages that generate: modalities, voice and sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from omni_python.models.loading.checkpoint import CheckpointError, load_json
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import ROLES, Message, OmniRequest
from omni_python.proto.sampling import SamplingParams

MODALITIES = ("text", "audio")


class GenerationOptions(msgspec.Struct, array_like=True):
    """What the client asked of the generating stages."""

    thinker: SamplingParams
    talker: SamplingParams
    speech: bool
    voice: str
    stream: bool
    echo_text: str = ""


@dataclass(frozen=True)
class OptionReader:
    """`speech` tells whether the pipeline has the speech stages. `voices` are in lower case; `thinker` and `talker`
    are the parameters of a request that gives none."""

    speech: bool
    voices: Sequence[str]
    default_voice: str
    thinker: SamplingParams
    talker: SamplingParams

    def __call__(self, request: OmniRequest) -> GenerationOptions:
        """Raises `InvalidArgument` naming what is valid."""
        return GenerationOptions(
            *self._sampling_params(request.sampling),
            speech=self._wants_speech(request.modalities),
            voice=self._voice(request.voice),
            stream=request.stream,
            echo_text=request.messages[-1].text if request.echo else "",
        )

    def _wants_speech(self, modalities: list[str] | None) -> bool:
        """Whether to speak. `["audio"]` is the same as `["text", "audio"]`: speech is always spoken from a text."""
        if modalities is None:
            return self.speech
        unknown = next((modality for modality in modalities if modality not in MODALITIES), None)
        if unknown is not None or not modalities:
            what = "no modality is given" if unknown is None else f"unknown modality {unknown!r}"
            raise InvalidArgument(f"modalities: {what}; valid: {', '.join(MODALITIES)}")
        if "audio" in modalities and not self.speech:
            raise InvalidArgument('modalities: this pipeline cannot speak; ask for ["text"]')
        return "audio" in modalities

    def _voice(self, voice: str | None) -> str:
        if voice is None:
            return self.default_voice
        if voice.lower() not in self.voices:
            valid = f"valid: {', '.join(self.voices)}" if self.voices else "this checkpoint has no voices"
            raise InvalidArgument(f"voice: unknown voice {voice!r}; {valid}")
        return voice.lower()

    def _sampling_params(self, given: dict[str, Any]) -> tuple[SamplingParams, SamplingParams]:
        """The thinker's parameters (top level, then the object "thinker") and the talker's (the object "talker")."""
        stages = {stage: given.get(stage, {}) for stage in ("thinker", "talker")}
        for stage, values in stages.items():
            if not isinstance(values, dict):
                raise InvalidArgument(f"sampling_parameters.{stage} must be an object, not {type(values).__name__}")
        top = {key: value for key, value in given.items() if key not in stages}
        unknown = sorted(set(top) - set(SamplingParams.__struct_fields__))
        if unknown:
            valid = ", ".join((*SamplingParams.__struct_fields__, *stages))
            raise InvalidArgument(f"sampling_parameters: unknown key {unknown[0]!r}; valid keys: {valid}")
        if "stop" in stages["talker"]:
            raise InvalidArgument("sampling_parameters.talker: speech has no stop strings; put `stop` at the top level")
        thinker = self.thinker.override(top, "sampling_parameters")
        return (
            thinker.override(stages["thinker"], "sampling_parameters.thinker"),
            self.talker.override(stages["talker"], "sampling_parameters.talker"),
        )


def fitted(params: SamplingParams, prompt_tokens: int, context: int) -> SamplingParams:
    """The parameters of an answer that ends within `context` tokens, those of its prompt included.

    Raises `InvalidArgument` where the prompt leaves no room for one.
    """
    room = context - prompt_tokens
    if room < 1:
        raise InvalidArgument(f"the prompt has {prompt_tokens} tokens; the context holds {context}, answer included")
    return params if params.max_tokens <= room else msgspec.structs.replace(params, max_tokens=room)


def check_messages(messages: Sequence[Message]) -> None:
    """Raises `InvalidArgument` for what is no conversation that a user's turn ends."""
    if not messages:
        raise InvalidArgument("the request has no message and no text")
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidArgument(f"messages[{index}]: unknown role {message.role!r}; valid: {', '.join(ROLES)}")
        if message.role != "user" and message.has_media:
            raise InvalidArgument(f"messages[{index}]: media are accepted in turns of the role user only")
    last = messages[-1]
    if last.role != "user":
        raise InvalidArgument(f"the last message must be of the role user, not {last.role}")
    if not last.text.strip() and not last.has_media:
        raise InvalidArgument("the prompt is empty; give a text or media")


def default_sampling(model_path: str | Path) -> SamplingParams:
    """Of text: greedy, unless the checkpoint's generation_config.json says `do_sample`; lengths and penalties from
    there too."""
    try:
        given = load_json(model_path, "generation_config.json")
    except CheckpointError:
        given = {}
    values: dict[str, Any] = {
        "repetition_penalty": given.get("repetition_penalty"),
        "max_tokens": given.get("max_new_tokens"),
    }
    if given.get("do_sample"):
        values["temperature"] = given.get("temperature") or 1.0
        values |= {key: given.get(key) for key in ("top_p", "top_k")}
    return SamplingParams().override(
        {key: value for key, value in values.items() if value is not None}, "generation_config.json"
    )
