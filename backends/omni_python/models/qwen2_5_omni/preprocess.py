"""A client's request to the thinker's prompt and the encoders' inputs: every check of what a client may ask is here."""

from __future__ import annotations

from pathlib import Path

from omni_python.models.loading.checkpoint import load_config
from omni_python.models.qwen2_5_omni.features import MediaLimits, MediaReader
from omni_python.models.qwen2_5_omni.info import context, default_voice
from omni_python.models.qwen2_5_omni.payloads import Question
from omni_python.models.qwen2_5_omni.prompt import PromptBuilder
from omni_python.models.qwen2_5_omni.voices import load_voices
from omni_python.models.text.options import OptionReader, check_messages, default_sampling, fitted
from omni_python.preprocessing.image import MAX_PIXELS
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.proto.request import Message, OmniRequest, TextPart
from omni_python.proto.sampling import SamplingParams

TALKER_DEFAULTS = SamplingParams(temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, max_tokens=4096)
"""As in transformers' Qwen2_5OmniForConditionalGeneration.generate."""

SPEECH_SYSTEM = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)
"""The system message that the published model needs to speak; put before conversations that have none."""


class Preprocessor:
    """The preprocessing stage of Qwen2.5-Omni: OmniRequest -> Question. What a client asks wrongly raises
    `InvalidArgument`, which says what would be valid."""

    def __init__(
        self, model_path: str | Path, media: MediaLoader, audio_seconds: float = 300.0, image_pixels: int = MAX_PIXELS
    ) -> None:
        """`audio_seconds` of sound and `image_pixels` of pictures are accepted in one request."""
        config = load_config(model_path)
        self._context = context(config)
        self._media = media
        self._reader = MediaReader(model_path, MediaLimits(audio_seconds, image_pixels, self._context))
        self._prompt = PromptBuilder(model_path, config["thinker_config"], self._reader.seconds_per_grid)
        names = list(load_voices(model_path))
        self._options = OptionReader(True, names, default_voice(names), default_sampling(model_path), TALKER_DEFAULTS)

    def __call__(self, request: OmniRequest) -> Question:
        check_messages(request.messages)
        options = self._options(request)
        messages = request.messages
        if options.speech and messages[0].role != "system":
            messages = [Message("system", [TextPart(SPEECH_SYSTEM)]), *messages]
        text = self._prompt.render(messages)
        media = self._reader.read(self._media.load(request).messages)
        features = self._reader.features(media)
        heard = [] if features is None or features.audio_lengths is None else features.audio_lengths.tolist()
        ids = self._prompt.expand(text, media, heard)
        options.thinker = fitted(options.thinker, len(ids), self._context)
        return Question(ids, *self._prompt.positions(ids, features), options, features)
