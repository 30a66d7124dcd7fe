"""A client's request to the thinker's prompt: every check of what a client may ask is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from omni_python.models.media.pieces import joined
from omni_python.models.ming_omni.architecture import thinker_config
from omni_python.models.ming_omni.encoder_architecture import image_encoder_config
from omni_python.models.ming_omni.media import Media, MediaReader
from omni_python.models.ming_omni.payloads import ChatPrompt, Clips, Pictures, ReadRequest
from omni_python.models.ming_omni.prompt import ThinkerPrompt
from omni_python.models.ming_omni.voices import default_voice, voice_names
from omni_python.models.text.options import OptionReader, check_messages, default_sampling, fitted
from omni_python.preprocessing.image import MAX_PIXELS
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.proto.errors import InvalidArgument, Unsupported
from omni_python.proto.request import OmniRequest
from omni_python.proto.sampling import SamplingParams

TALKER_DEFAULTS = SamplingParams(temperature=0.0, max_tokens=200)
"""The published talker's: no noise but what the flow begins with, and at most so many steps for a piece of text."""

TALKER_KEYS = ("temperature", "seed", "max_tokens", "ignore_eos")
"""What of the sampling parameters means something to a talker that chooses no tokens."""

IMAGE = "image"


class Preprocessor:
    """The preprocessing stage. What a client asks wrongly raises `InvalidArgument`, what the model could and this
    pipeline cannot do `Unsupported`; both say what would be valid."""

    def __init__(
        self,
        model_path: str | Path,
        speech: bool,
        media: MediaLoader,
        audio_seconds: float = 300.0,
        image_pixels: int = MAX_PIXELS,
    ) -> None:
        """`audio_seconds` and `image_pixels` as for `MediaReader`."""
        self._context = thinker_config(model_path).context
        self._merge = image_encoder_config(model_path).tower.spatial_merge_size
        self._media = media
        self._reader = MediaReader(model_path, audio_seconds, image_pixels, self._context)
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
        _check_talker(request.sampling.get("talker"))
        options = self._options(request)
        messages = self._media.load(request).messages
        media = self._reader.read(messages)
        input_ids = self._prompt(messages, media.texts)
        options.thinker = fitted(options.thinker, len(input_ids), self._context)
        grids = [piece.grid for piece in media.pictures]
        sizes = [(rows // self._merge, columns // self._merge) for steps, rows, columns in grids for _ in range(steps)]
        prompt = ChatPrompt(input_ids, *self._prompt.positions(input_ids, sizes), options)
        return ReadRequest(prompt, _clips(media), _pictures(media))


def _clips(media: Media) -> Clips | None:
    if not media.spectra:
        return None
    lengths = torch.tensor([spectrum.shape[1] for spectrum in media.spectra])
    return Clips(torch.cat(media.spectra, dim=1).contiguous(), lengths)


def _pictures(media: Media) -> Pictures | None:
    patches, grids = joined(media.pictures)
    return None if patches is None or grids is None else Pictures(patches, grids)


def _check_talker(given: Any) -> None:
    if isinstance(given, dict) and (unknown := sorted(given.keys() - set(TALKER_KEYS))):
        raise InvalidArgument(
            f"sampling_parameters.talker: {unknown[0]!r} means nothing to this talker, which chooses no tokens; "
            f"valid keys: {', '.join(TALKER_KEYS)}"
        )
