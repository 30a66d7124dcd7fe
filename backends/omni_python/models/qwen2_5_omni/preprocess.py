"""A client's request to the thinker's prompt: every check of what a client may ask is here."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from omni_python.layers.rope_index import RopeIndex
from omni_python.models.loading.checkpoint import CheckpointError, load_config
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.qwen2_5_omni.features import Extractor, audio_tokens, image_tokens, refuse_videos
from omni_python.models.qwen2_5_omni.info import context, default_voice
from omni_python.models.qwen2_5_omni.payloads import MediaFeatures, Question
from omni_python.models.qwen2_5_omni.voices import load_voices
from omni_python.models.text.chat_template import load_template
from omni_python.models.text.conversation import render
from omni_python.models.text.options import OptionReader, check_messages, default_sampling
from omni_python.preprocessing.image import MAX_PIXELS
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import Message, OmniRequest, TextPart
from omni_python.proto.sampling import SamplingParams

TALKER_DEFAULTS = SamplingParams(temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, max_tokens=4096)
"""As in transformers' Qwen2_5OmniForConditionalGeneration.generate."""

SPEECH_SYSTEM = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)
"""The system message that the published model needs to speak; put before conversations that have none."""

MEDIA_TOKENS = (
    "<|IMAGE|>",
    "<|VIDEO|>",
    "<|AUDIO|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
)


class Preprocessor:
    """The preprocessing stage of Qwen2.5-Omni: OmniRequest -> Question."""

    def __init__(
        self, model_path: str | Path, media: MediaLoader, max_seconds: float = 300.0, max_pixels: int = MAX_PIXELS
    ) -> None:
        """`max_seconds` of sound and `max_pixels` of pictures are accepted in one request."""
        config = load_config(model_path)
        thinker = config["thinker_config"]
        self._context = context(config)
        self._audio, self._image = thinker["audio_token_index"], thinker["image_token_index"]
        self._merge = thinker["vision_config"].get("spatial_merge_size", 2)
        self._positions = RopeIndex(
            image_token=self._image,
            video_token=thinker["video_token_index"],
            audio_token=self._audio,
            vision_start=thinker["vision_start_token_id"],
            audio_start=thinker["audio_start_token_id"],
            positions_per_second=thinker["position_id_per_seconds"],
            merge=self._merge,
        )
        self._extract = Extractor(model_path, max_seconds, max_pixels)
        self._tokenizer = load_tokenizer(model_path)
        self._template = load_template(model_path)
        self._media = media
        names = list(load_voices(model_path))
        self._options = OptionReader(True, names, default_voice(names), default_sampling(model_path), TALKER_DEFAULTS)

    def __call__(self, request: OmniRequest) -> Question:
        messages = request.messages
        check_messages(messages)
        refuse_videos(messages)
        options = self._options(request)
        if options.speech and messages[0].role != "system":
            messages = [Message("system", [TextPart(SPEECH_SYSTEM)]), *messages]
        text = render(self._template, messages, MEDIA_TOKENS)
        features = self._extract(self._extract.decode(self._media.load(OmniRequest(messages)).messages))
        ids = self._expand(text, features)
        room = self._context - len(ids)
        if room < 1:
            raise InvalidArgument(
                f"the prompt has {len(ids)} tokens; the context holds {self._context}, answer included"
            )
        if options.thinker.max_tokens > room:
            options.thinker = msgspec.structs.replace(options.thinker, max_tokens=room)
        positions, delta = self._positions(ids, features.image_grids if features else None)
        return Question(ids, positions, delta, options, features)

    def _expand(self, text: str, features: MediaFeatures | None) -> torch.Tensor:
        """Token ids int64 [P], each placeholder repeated as often as its medium has tokens."""
        clips = [] if features is None or features.audio_lengths is None else features.audio_lengths.tolist()
        images = [] if features is None or features.image_grids is None else features.image_grids.tolist()
        counts = {
            self._audio: [audio_tokens(frames) for frames in reversed(clips)],
            self._image: [image_tokens(grid, self._merge) for grid in reversed(images)],
        }
        ids: list[int] = []
        try:
            for token in self._tokenizer.encode(text).ids:
                ids.extend([token] * (counts[token].pop() if token in counts else 1))
        except IndexError:
            raise CheckpointError(
                "the checkpoint's chat template writes more placeholders than there are media"
            ) from None
        if any(counts.values()):
            raise CheckpointError("the checkpoint's chat template writes fewer placeholders than there are media")
        return torch.tensor(ids)
