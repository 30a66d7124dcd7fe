"""A client's request to the prompt: every check of what a client may ask is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from omni_python.models.fish_s2_pro.architecture import model_config
from omni_python.models.fish_s2_pro.codec_checkpoint import load_encoder
from omni_python.models.fish_s2_pro.info import OWN_VOICE, SAMPLE_RATE
from omni_python.models.fish_s2_pro.payloads import SpeechPrompt
from omni_python.models.fish_s2_pro.prompt import PromptBuilder, Voice
from omni_python.models.text.options import fitted
from omni_python.preprocessing.audio import read_audio
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart, Message, OmniRequest, TextPart
from omni_python.proto.sampling import SamplingParams

DEFAULTS = SamplingParams(temperature=0.8, top_p=0.8, top_k=30, repetition_penalty=1.1, max_tokens=2048)
"""SGLang-Omni's for S2-Pro."""

TRANSCRIPT = "reference_text"
"""The sampling parameter that tells what is said in the sound beside the text."""


class Preprocessor:
    """The preprocessing stage of S2-Pro.

    The last message is what to speak. A voice to clone is a sound with its words: both in a system message, or the
    sound beside the text to speak and the words as the parameter `reference_text`. What a client asks wrongly raises
    `InvalidArgument`, which says what would be valid.
    """

    def __init__(
        self, model_path: str | Path, media: MediaLoader, device: str = "cpu", reference_seconds: float = 60.0
    ) -> None:
        """At most `reference_seconds` of all sounds of a request together are encoded."""
        self._config = model_config(model_path)
        self._prompt = PromptBuilder(model_path, self._config)
        self._encoder = load_encoder(model_path, device)
        self._device = device
        self._media = media
        self._seconds = reference_seconds
        self._frame = self._encoder.sizes.samples_per_frame

    def __call__(self, request: OmniRequest) -> SpeechPrompt:
        _check(request)
        sampling, transcript = _parameters(request.sampling)
        *before, last = self._media.load(request).messages
        text = last.text
        if not text.strip():
            raise InvalidArgument("the text to speak is empty")
        voices = self._voices(before, last, transcript)
        tokens, codes = self._prompt(text, voices)
        return SpeechPrompt(tokens, codes, fitted(sampling, len(tokens), self._config.context), request.stream)

    def _voices(self, before: list[Message], last: Message, transcript: str) -> list[Voice]:
        sounds: list[tuple[list[AudioPart], str, str]] = [
            (_sounds(message), message.text, "in the system message") for message in before
        ]
        sounds.append((_sounds(last), transcript, f"as the parameter {TRANSCRIPT!r}"))
        seconds, voices = self._seconds, []
        for parts, words, where in sounds:
            if not parts and not words.strip():
                continue
            if len(parts) != 1 or not words.strip():
                raise InvalidArgument(
                    f"a voice to clone is one sound and the words that are spoken in it, {where}; "
                    f"given are {len(parts)} sounds and {'words' if words.strip() else 'no words'}"
                )
            samples = read_audio(parts[0], SAMPLE_RATE, seconds)
            seconds -= len(samples) / SAMPLE_RATE
            voices.append(Voice(self._codes(samples), words))
        return voices

    @torch.inference_mode()
    def _codes(self, samples: np.ndarray) -> torch.Tensor:
        padded = F.pad(torch.from_numpy(samples.copy()), (0, -len(samples) % self._frame))
        codes: torch.Tensor = self._encoder(padded.to(self._device)[None, None])[0]
        return codes.cpu()


def _check(request: OmniRequest) -> None:
    if not request.messages:
        raise InvalidArgument("the request has no message and no text")
    *before, last = request.messages
    if last.role != "user" or any(message.role != "system" for message in before):
        raise InvalidArgument(
            "this pipeline speaks the text of one user message, after system messages that each hold a voice to clone; "
            "it holds no conversations"
        )
    for message in request.messages:
        if not all(isinstance(part, TextPart | AudioPart) for part in message.content):
            raise InvalidArgument("this pipeline takes text and sound alone, no images and videos")
    if request.modalities is not None and request.modalities != ["audio"]:
        raise InvalidArgument('modalities: this pipeline answers with speech alone; ask for ["audio"]')
    if request.voice is not None and request.voice.lower() != OWN_VOICE:
        raise InvalidArgument(
            f"voice: unknown voice {request.voice!r}; valid: {OWN_VOICE}; others are cloned from a sound and its words"
        )
    if request.echo:
        raise InvalidArgument("exclude_input_in_output: this pipeline gives no text, and so cannot repeat the input")


def _parameters(given: dict[str, Any]) -> tuple[SamplingParams, str]:
    given = dict(given)
    transcript = given.pop(TRANSCRIPT, "")
    if not isinstance(transcript, str):
        raise InvalidArgument(f"sampling_parameters.{TRANSCRIPT} must be a text, not {type(transcript).__name__}")
    fields = SamplingParams.__struct_fields__
    if unknown := sorted(given.keys() - set(fields)):
        valid = ", ".join((*(name for name in fields if name != "stop"), TRANSCRIPT))
        raise InvalidArgument(f"sampling_parameters: unknown key {unknown[0]!r}; valid keys: {valid}")
    if given.get("stop"):
        raise InvalidArgument("sampling_parameters: speech has no stop strings")
    return DEFAULTS.override(given, "sampling_parameters"), transcript


def _sounds(message: Message) -> list[AudioPart]:
    return [part for part in message.content if isinstance(part, AudioPart)]
