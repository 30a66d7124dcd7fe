"""A client's request to the thinker's prompt and the encoders' inputs: every check of what a client may ask is here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from omni_python.layers.rope_index import RopeIndex
from omni_python.models.loading.checkpoint import CheckpointError, load_config
from omni_python.models.media.patches import Patcher
from omni_python.models.media.pieces import VisionPiece, joined
from omni_python.models.qwen3_omni.features import AudioFeatures, audio_tokens
from omni_python.models.qwen3_omni.info import context, default_voice, voices
from omni_python.models.qwen3_omni.limits import RequestLimits
from omni_python.models.qwen3_omni.payloads import AudioInput, Preprocessed, Prompt, VisionInput
from omni_python.models.qwen3_omni.prompt import PromptBuilder, VideoSpan
from omni_python.models.text.options import OptionReader, check_messages, default_sampling, fitted
from omni_python.preprocessing.audio import decode_audio, read_audio
from omni_python.preprocessing.image import decode_image
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.preprocessing.video import Sampling, decode_video, probe_video
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import (
    AudioPart,
    ContentPart,
    ImagePart,
    Message,
    OmniRequest,
    VideoPart,
    numbered_parts,
)
from omni_python.proto.sampling import SamplingParams

TALKER_DEFAULTS = SamplingParams(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, max_tokens=4096)
"""As in transformers' Qwen3OmniMoeForConditionalGeneration.generate."""


@dataclass
class _Media:
    """The media of one request, decoded, in prompt order; `clips` are sound tracks of videos too. `pixels` of
    images and `frames` of videos are bounded."""

    clips: list[np.ndarray] = field(default_factory=list)
    clip_of_video: list[int | None] = field(default_factory=list)
    images: list[VisionPiece] = field(default_factory=list)
    videos: list[VisionPiece] = field(default_factory=list)
    pixels: int = 0
    frames: int = 0


class Preprocessor:
    """The preprocessing stage of Qwen3-Omni.

    `speech` tells whether the pipeline has the speech stages. What a client asks wrongly raises `InvalidArgument`,
    which says what would be valid.
    """

    def __init__(
        self,
        model_path: str | Path,
        speech: bool,
        media: MediaLoader | None = None,
        limits: RequestLimits | None = None,
    ) -> None:
        config = load_config(model_path)
        self._media = media or MediaLoader(MediaPolicy())
        self._limits = limits or RequestLimits()
        self.voices = voices(config)
        if speech and not self.voices:
            raise CheckpointError(f"checkpoint {str(model_path)!r} cannot speak: its talker_config has no speaker_id")
        self._options = OptionReader(
            speech, self.voices, default_voice(self.voices), default_sampling(model_path), TALKER_DEFAULTS
        )
        self.context = context(config)
        self._window = int(config["thinker_config"]["audio_config"]["n_window"])
        self._prompt = PromptBuilder(model_path)
        self._positions = RopeIndex.from_config(config)
        self._hear = AudioFeatures(model_path)
        self._images = Patcher.for_images(model_path)
        self._videos = Patcher.for_videos(model_path)
        self._sampling = Sampling(multiple=self._videos.temporal)
        self._seconds_per_grid = self._videos.temporal / self._sampling.fps

    def __call__(self, request: OmniRequest) -> Preprocessed:
        check_messages(request.messages)
        options = self._options(request)
        text = self._prompt.render(request.messages)
        media = self._load(self._media.load(request).messages)
        vision = _vision_input(media)
        audio = self._hear(media.clips) if media.clips else None
        input_ids = self._expand(text, media, audio)
        options.thinker = fitted(options.thinker, len(input_ids), self.context)
        self._limits.check_prompt(len(input_ids))
        position_ids, rope_delta = self._positions(
            input_ids,
            vision.image_grids if vision else None,
            vision.video_grids if vision else None,
            [self._seconds_per_grid] * len(media.videos),
        )
        return Preprocessed(Prompt(input_ids, position_ids, rope_delta, options), vision, audio)

    # ---- media

    def _load(self, messages: list[Message]) -> _Media:
        """Decode everything; stops as soon as the media alone fill the context."""
        media, tokens = _Media(), 0
        for where, part in numbered_parts(messages):
            try:
                tokens += self._load_part(part, media, self.context - tokens)
            except InvalidArgument as error:
                raise InvalidArgument(f"{where}: {error}") from error
            if tokens >= self.context:
                raise self._too_long(tokens)
            self._limits.check_prompt(tokens)
        return media

    def _load_part(self, part: ContentPart, media: _Media, room: int) -> int:
        """Decode one part into `media`; returns the number of tokens that it takes."""
        match part:
            case AudioPart():
                self._add_clip(media, read_audio(part, self._hear.sample_rate, self._limits.audio_seconds), None)
                return len(media.clips[-1]) // self._hear.sample_rate * 13
            case ImagePart():
                decoded = decode_image(part.data, self._limits.image_pixels)
                media.pixels += decoded.shape[0] * decoded.shape[1]
                self._limits.check_images(media.pixels)
                media.images.append(self._images.piece(self._images.resize(decoded)[None]))
                return self._images.tokens(media.images[-1].grid)
            case VideoPart():
                return self._load_video(part, media, room)
        return 0

    def _load_video(self, part: VideoPart, media: _Media, room: int) -> int:
        info = probe_video(part.data)
        frames = len(self._sampling.indices(info.frames, info.rate))
        tokens = self._videos.tokens(self._videos.grid(frames, info.height, info.width))
        media.frames += frames
        self._limits.check_videos(media.frames)
        if tokens >= room:  # before anything is decoded, for decoded it may not fit into memory
            raise self._too_long(self.context - room + tokens)
        video = decode_video(part.data, self._sampling, transform=self._videos.resize)
        if part.use_audio and info.has_sound:
            sound = decode_audio(part.data, self._hear.sample_rate, self._limits.audio_seconds)
            self._add_clip(media, sound, len(media.videos))
        media.videos.append(self._videos.piece(video.frames))
        return tokens

    def _add_clip(self, media: _Media, samples: np.ndarray, video: int | None) -> None:
        media.clips.append(samples)
        media.clip_of_video.append(video)
        self._limits.check_audio(sum(map(len, media.clips)) / self._hear.sample_rate)

    def _expand(self, text: str, media: _Media, audio: AudioInput | None) -> torch.Tensor:
        counts = [audio_tokens(frames, self._window) for frames in (audio.lengths.tolist() if audio else [])]
        sound = {video: count for video, count in zip(media.clip_of_video, counts, strict=True) if video is not None}
        return self._prompt.expand(
            text,
            audio_tokens=[count for video, count in zip(media.clip_of_video, counts, strict=True) if video is None],
            image_tokens=[self._images.tokens(piece.grid) for piece in media.images],
            videos=[
                VideoSpan(piece.grid, self._seconds_per_grid, sound.get(video, 0))
                for video, piece in enumerate(media.videos)
            ],
        )

    def _too_long(self, tokens: int) -> InvalidArgument:
        return InvalidArgument(
            f"the prompt has at least {tokens} tokens; the context holds {self.context}, answer included"
        )


def _vision_input(media: _Media) -> VisionInput | None:
    if not (media.images or media.videos):
        return None
    return VisionInput(*joined(media.images), *joined(media.videos))
