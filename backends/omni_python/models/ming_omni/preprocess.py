"""A client's request to the thinker's prompt: every check of what a client may ask is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from omni_python.layers.log_mel import log_mel, mel_filters
from omni_python.models.ming_omni.architecture import encoder_config, thinker_config
from omni_python.models.ming_omni.payloads import ChatPrompt, Clips, ReadRequest
from omni_python.models.ming_omni.prompt import ThinkerPrompt
from omni_python.models.ming_omni.voices import default_voice, voice_names
from omni_python.models.text.options import OptionReader, check_messages, default_sampling
from omni_python.preprocessing.audio import SAMPLE_RATE, decode_audio, resample
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.proto.errors import InvalidArgument, Unsupported
from omni_python.proto.request import AudioPart, ImagePart, Message, OmniRequest, VideoPart
from omni_python.proto.sampling import SamplingParams

TALKER_DEFAULTS = SamplingParams(temperature=0.0, max_tokens=200)
"""The published talker's: no noise but what the flow begins with, and at most so many steps for a piece of text."""

TALKER_KEYS = ("temperature", "seed", "max_tokens", "ignore_eos")
"""What of the sampling parameters means something to a talker that chooses no tokens."""

IMAGE = "image"
FFT, HOP = 400, 160
"""Samples, of Whisper's spectra."""


class Preprocessor:
    """The preprocessing stage. What a client asks wrongly raises `InvalidArgument`, what the model could and this
    pipeline cannot do `Unsupported`; both say what would be valid."""

    def __init__(self, model_path: str | Path, speech: bool, media: MediaLoader, audio_seconds: float = 300.0) -> None:
        """At most `audio_seconds` of all sounds of a request together are heard, and of each as much as the encoder
        has positions for."""
        self._context = thinker_config(model_path).context
        self._encoder = encoder_config(model_path)
        self._filters = mel_filters(self._encoder.bins, FFT, SAMPLE_RATE)
        self._media = media
        self._seconds = audio_seconds
        self._longest = self._encoder.positions * 2 * HOP / SAMPLE_RATE
        self._prompt = ThinkerPrompt(model_path)
        voices = voice_names(model_path) if speech else []
        self._options = OptionReader(
            speech, voices, default_voice(voices), default_sampling(model_path), TALKER_DEFAULTS
        )

    def __call__(self, request: OmniRequest) -> ReadRequest:
        if IMAGE in (request.modalities or ()):
            raise Unsupported(
                "modalities: the stage image_generation, which would answer with images, is declared but does not "
                "exist yet; valid: text, audio"
            )
        check_messages(request.messages)
        _check_media(request.messages)
        _check_talker(request.sampling.get("talker"))
        options = self._options(request)
        messages = self._media.load(request).messages
        spectra = self._spectra(messages)
        lengths = [spectrum.shape[1] for spectrum in spectra]
        input_ids = self._prompt(messages, [self._encoder.tokens(length) for length in lengths])
        room = self._context - len(input_ids)
        if room < 1:
            raise InvalidArgument(
                f"the prompt has {len(input_ids)} tokens; the context holds {self._context}, answer included"
            )
        if options.thinker.max_tokens > room:
            options.thinker = msgspec.structs.replace(options.thinker, max_tokens=room)
        clips = Clips(torch.cat(spectra, dim=1).contiguous(), torch.tensor(lengths)) if spectra else None
        return ReadRequest(ChatPrompt(input_ids, options), clips)

    def _spectra(self, messages: list[Message]) -> list[torch.Tensor]:
        """Of each sound, [bins, frames]."""
        seconds, spectra = self._seconds, []
        for turn, message in enumerate(messages):
            for index, part in enumerate(message.content):
                if not isinstance(part, AudioPart):
                    continue
                try:
                    samples = _samples(part, min(seconds, self._longest))
                except InvalidArgument as error:
                    raise InvalidArgument(f"messages[{turn}].content[{index}]: {error}") from error
                seconds -= len(samples) / SAMPLE_RATE
                spectra.append(log_mel(torch.from_numpy(samples.copy())[None], self._filters, FFT, HOP)[0])
        return spectra


def _samples(part: AudioPart, seconds: float) -> np.ndarray:
    """float32 [n] at `SAMPLE_RATE`."""
    if part.data is not None:
        samples = decode_audio(part.data, SAMPLE_RATE, seconds)
    elif part.samples is not None and part.sample_rate is not None:
        samples = resample(np.asarray(part.samples), part.sample_rate, SAMPLE_RATE, seconds)
    else:
        raise InvalidArgument("audio needs an encoded file, or samples with their sample rate")
    if len(samples) < FFT:
        raise InvalidArgument(f"audio of {len(samples)} samples at {SAMPLE_RATE} Hz is too short; {FFT} are needed")
    return samples


def _check_media(messages: list[Message]) -> None:
    for turn, message in enumerate(messages):
        for index, part in enumerate(message.content):
            if isinstance(part, ImagePart | VideoPart):
                what = "images" if isinstance(part, ImagePart) else "videos"
                raise Unsupported(
                    f"messages[{turn}].content[{index}]: the stage image_encoder, which would see {what}, does not "
                    "exist yet; valid: text, sound"
                )


def _check_talker(given: Any) -> None:
    if isinstance(given, dict) and (unknown := sorted(given.keys() - set(TALKER_KEYS))):
        raise InvalidArgument(
            f"sampling_parameters.talker: {unknown[0]!r} means nothing to this talker, which chooses no tokens; "
            f"valid keys: {', '.join(TALKER_KEYS)}"
        )
