"""A client's request to the thinker's prompt: every check of what a client may ask is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from omni_python.models.ming_omni.architecture import thinker_config
from omni_python.models.ming_omni.info import OWN_VOICE
from omni_python.models.ming_omni.payloads import ChatPrompt
from omni_python.models.ming_omni.prompt import ThinkerPrompt
from omni_python.models.text.options import OptionReader, check_messages, default_sampling
from omni_python.proto.errors import InvalidArgument, Unsupported
from omni_python.proto.request import AudioPart, ImagePart, Message, OmniRequest, TextPart, VideoPart
from omni_python.proto.sampling import SamplingParams

TALKER_DEFAULTS = SamplingParams(temperature=0.0, max_tokens=200)
"""The published talker's: no noise but what the flow begins with, and at most so many steps for a piece of text."""

TALKER_KEYS = ("temperature", "seed", "max_tokens", "ignore_eos")
"""What of the sampling parameters means something to a talker that chooses no tokens."""

IMAGE = "image"
_MEDIA: dict[type, str] = {AudioPart: "sound", ImagePart: "images", VideoPart: "videos"}


class Preprocessor:
    """The preprocessing stage. What a client asks wrongly raises `InvalidArgument`, what the model could and this
    pipeline cannot do `Unsupported`; both say what would be valid."""

    def __init__(self, model_path: str | Path, speech: bool) -> None:
        self._context = thinker_config(model_path).context
        self._prompt = ThinkerPrompt(model_path)
        voices = (OWN_VOICE,) if speech else ()
        self._options = OptionReader(speech, voices, OWN_VOICE, default_sampling(model_path), TALKER_DEFAULTS)

    def __call__(self, request: OmniRequest) -> ChatPrompt:
        if IMAGE in (request.modalities or ()):
            raise Unsupported(
                "modalities: the stage image_generation, which would answer with images, is declared but does not "
                "exist yet; valid: text, audio"
            )
        check_messages(request.messages)
        _check_media(request.messages)
        _check_talker(request.sampling.get("talker"))
        options = self._options(request)
        input_ids = self._prompt(request.messages)
        room = self._context - len(input_ids)
        if room < 1:
            raise InvalidArgument(
                f"the prompt has {len(input_ids)} tokens; the context holds {self._context}, answer included"
            )
        if options.thinker.max_tokens > room:
            options.thinker = msgspec.structs.replace(options.thinker, max_tokens=room)
        return ChatPrompt(input_ids, options)


def _check_media(messages: list[Message]) -> None:
    for turn, message in enumerate(messages):
        for index, part in enumerate(message.content):
            if not isinstance(part, TextPart):
                raise Unsupported(
                    f"messages[{turn}].content[{index}]: the encoder that would take {_MEDIA[type(part)]} does not "
                    "exist in this pipeline yet; it takes text alone"
                )


def _check_talker(given: Any) -> None:
    if isinstance(given, dict) and (unknown := sorted(given.keys() - set(TALKER_KEYS))):
        raise InvalidArgument(
            f"sampling_parameters.talker: {unknown[0]!r} means nothing to this talker, which chooses no tokens; "
            f"valid keys: {', '.join(TALKER_KEYS)}"
        )
