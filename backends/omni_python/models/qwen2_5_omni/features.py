"""Media of a request to what the encoders take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from omni_python.models.media.patches import Patcher
from omni_python.models.media.pieces import Grid, VisionPiece, joined
from omni_python.models.media.vision_reading import VisionRoom, read_picture, read_video
from omni_python.models.qwen2_5_omni.payloads import MediaFeatures
from omni_python.preprocessing.audio import decode_audio, read_audio
from omni_python.preprocessing.video import Sampling
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart, ContentPart, ImagePart, Message, VideoPart, numbered_parts


@dataclass(frozen=True)
class MediaLimits:
    """Of one request: seconds of sound, those of videos too, pixels of pictures as they were sent, and tokens of all
    media together."""

    audio_seconds: float
    image_pixels: int
    tokens: int


@dataclass
class Media:
    """In prompt order: mono clips float32 [n], and patches of pictures and videos. `sounds` are the clips that are
    sound tracks, by the number of their video; `tokens` the embeddings that clips, images and videos will have."""

    clips: list[np.ndarray] = field(default_factory=list)
    images: list[VisionPiece] = field(default_factory=list)
    videos: list[VisionPiece] = field(default_factory=list)
    sounds: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0


class MediaReader:
    """With the checkpoint's preprocessor_config.json. Sound is read by transformers' own feature extractor."""

    def __init__(self, model_path: str | Path, limits: MediaLimits) -> None:
        from transformers.models.whisper.feature_extraction_whisper import WhisperFeatureExtractor

        self._hear = WhisperFeatureExtractor.from_pretrained(model_path)
        self._rate: int = self._hear.sampling_rate
        self._shortest: int = 2 * self._hear.n_fft
        self._images = Patcher.for_images(model_path)
        self._videos = Patcher.for_videos(model_path)
        self._sampling = Sampling(multiple=self._videos.temporal)
        self._limits = limits
        self.seconds_per_grid = self._videos.temporal / self._sampling.fps
        """From one step of a video's grid to the next."""

    def read(self, messages: Sequence[Message]) -> Media:
        """Decode everything. Raises `InvalidArgument` naming the part that cannot be read or is too large."""
        media = Media()
        room = VisionRoom(self._limits.image_pixels, self._limits.tokens)
        for where, part in numbered_parts(messages):
            try:
                self._read_part(part, media, room)
            except InvalidArgument as error:
                raise InvalidArgument(f"{where}: {error}") from error
        return media

    def features(self, media: Media) -> MediaFeatures | None:
        """None where there are no media."""
        if not (media.clips or media.images or media.videos):
            return None
        found = MediaFeatures()
        if media.clips:
            found.audio, found.audio_lengths = self._log_mel(media.clips)
        found.image, found.image_grids = joined(media.images)
        found.video, found.video_grids = joined(media.videos)
        return found

    def _read_part(self, part: ContentPart, media: Media, room: VisionRoom) -> None:
        match part:
            case AudioPart():
                self._add_clip(media, read_audio(part, self._rate, self._limits.audio_seconds - media.seconds))
            case ImagePart():
                media.images.append(read_picture(part.data, self._images, room))
            case VideoPart():
                self._read_video(part, media, room)

    def _read_video(self, part: VideoPart, media: Media, room: VisionRoom) -> None:
        video = read_video(part.data, self._sampling, lambda _: self._videos, room)
        if part.use_audio and video.info.has_sound:
            media.sounds[len(media.videos)] = len(media.clips)
            left = self._limits.audio_seconds - media.seconds
            self._add_clip(media, decode_audio(part.data, self._rate, left))
        media.videos.append(video.piece)

    def _add_clip(self, media: Media, clip: np.ndarray) -> None:
        if len(clip) < self._shortest:
            raise InvalidArgument(
                f"audio of {len(clip)} samples is too short; at least {self._shortest} at {self._rate} Hz are needed"
            )
        media.clips.append(clip)
        media.seconds += len(clip) / self._rate

    def _log_mel(self, clips: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        # One by one: padded to the longest, many short clips beside a long one would fill the memory.
        heard = [self._spectrum(clip) for clip in clips]
        return torch.cat(heard, dim=1), torch.tensor([spectrum.shape[1] for spectrum in heard])

    def _spectrum(self, clip: np.ndarray) -> torch.Tensor:
        """[mel bins, frames]."""
        # Hugging Face pads to 300 s. No frame sees more silence than this, and as there it is whole frames in all,
        # which matters where the silence comes first.
        hop = self._hear.hop_length
        padded = -(-(len(clip) + self._shortest) // hop) * hop
        heard = self._hear(
            clip,
            sampling_rate=self._rate,
            padding="max_length",
            max_length=padded,
            return_attention_mask=True,
            return_tensors="pt",
        )
        spectrum: torch.Tensor = heard["input_features"][0]
        return spectrum[:, heard["attention_mask"][0].bool()]


def audio_tokens(frames: int) -> int:
    """Embeddings that the audio encoder makes of so many log-mel frames: a convolution and a mean, of stride 2 both."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def vision_tokens(grid: Grid, merge: int) -> int:
    """Embeddings that the vision encoder makes of a picture or video."""
    return math.prod(grid) // merge**2
