"""A request's sounds, pictures and videos to what the encoders take, and to the text that stands for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from omni_python.layers.log_mel import log_mel, mel_filters
from omni_python.models.loading.checkpoint import CheckpointError, load_json
from omni_python.models.media.patches import Patcher
from omni_python.models.media.pieces import VisionPiece
from omni_python.models.media.vision_reading import ReadVideo, VisionRoom, read_picture, read_video
from omni_python.models.ming_omni.encoder_architecture import encoder_config, image_encoder_config
from omni_python.models.ming_omni.prompt import picture_text, sound_text, video_text
from omni_python.preprocessing.audio import SAMPLE_RATE, decode_audio, read_audio
from omni_python.preprocessing.video import Sampling
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart, ContentPart, ImagePart, Message, TextPart, VideoPart, numbered_parts

FFT, HOP = 400, 160
"""Samples, of Whisper's spectra."""
VIDEO_FRAMES = 256
VIDEO_TOKENS = 96 * 128
"""At most, of one video, unless its frames would be smaller than `Patcher.for_videos` lets them be. This and
`EvenSampling` are from the published model's own code."""


class EvenSampling(Sampling):
    """The first frame, the last, and those evenly between them."""

    def indices(self, total: int, rate: float) -> list[int]:
        most = max(1, min(self.max_frames, total) // self.multiple * self.multiple)
        count = int(min(max(1.0, total / rate * self.fps), most, total))
        found: list[int] = np.linspace(0, total - 1, count, dtype=int).tolist()
        return found


@dataclass
class Media:
    """In prompt order: log-mel `spectra` [bins, frames], of so many `seconds` in all, `pictures`, of which a video is
    one too, and the `texts` that stand for each media part."""

    spectra: list[torch.Tensor] = field(default_factory=list)
    seconds: float = 0.0
    pictures: list[VisionPiece] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


class MediaReader:
    """Of a request at most `audio_seconds` of all sounds together are heard, those of videos too, and of each as much
    as the encoder has positions for; `image_pixels` of pictures are accepted as they were sent. A video's sound follows
    its frames. Raises `CheckpointError`."""

    def __init__(self, model_path: str | Path, audio_seconds: float, image_pixels: int, context: int) -> None:
        self._encoder = encoder_config(model_path)
        self._filters = mel_filters(self._encoder.bins, FFT, SAMPLE_RATE)
        self._seconds, self._pixels, self._context = audio_seconds, image_pixels, context
        self._longest = self._encoder.positions * 2 * HOP / SAMPLE_RATE
        self._images, self._videos = _patchers(model_path)
        self._sampling = EvenSampling(max_frames=VIDEO_FRAMES, multiple=self._videos.temporal)

    def read(self, messages: Sequence[Message]) -> Media:
        """Decode everything. Raises `InvalidArgument` naming the part that cannot be read or is too large."""
        media = Media()
        room = VisionRoom(self._pixels, self._context)
        for where, part in numbered_parts(messages):
            if isinstance(part, TextPart):
                continue
            try:
                media.texts.append("".join(self._read(part, media, room)))
            except InvalidArgument as error:
                raise InvalidArgument(f"{where}: {error}") from error
        return media

    def _read(self, part: ContentPart, media: Media, room: VisionRoom) -> Iterator[str]:
        """Into `media`; what stands for it."""
        match part:
            case AudioPart():
                yield self._heard(read_audio(part, SAMPLE_RATE, self._left(media)), media)
            case ImagePart():
                media.pictures.append(read_picture(part.data, self._images, room))
                yield picture_text(self._images.tokens(media.pictures[-1].grid))
            case VideoPart():
                video = read_video(part.data, self._sampling, self._patcher, room)
                media.pictures.append(video.piece)
                _, rows, columns = video.piece.grid
                yield video_text(_times(video, self._videos.temporal), self._videos.tokens((1, rows, columns)))
                if part.use_audio and video.info.has_sound:
                    yield self._heard(decode_audio(part.data, SAMPLE_RATE, self._left(media)), media)

    def _left(self, media: Media) -> float:
        """Seconds of the next sound that may be heard."""
        return min(self._seconds - media.seconds, self._longest)

    def _heard(self, samples: np.ndarray, media: Media) -> str:
        """`samples` float32 [n] at `SAMPLE_RATE`."""
        if len(samples) < FFT:
            raise InvalidArgument(f"audio of {len(samples)} samples at {SAMPLE_RATE} Hz is too short; {FFT} are needed")
        media.seconds += len(samples) / SAMPLE_RATE
        media.spectra.append(log_mel(torch.from_numpy(samples.copy())[None], self._filters, FFT, HOP)[0])
        return sound_text(self._encoder.tokens(media.spectra[-1].shape[1]))

    def _patcher(self, frames: int) -> Patcher:
        """For a video of so many."""
        token = (self._videos.patch * self._videos.merge) ** 2
        most = max(VIDEO_TOKENS * token * self._videos.temporal // frames, int(self._videos.min_pixels * 1.05))
        return replace(self._videos, max_pixels=most)


def _patchers(model_path: str | Path) -> tuple[Patcher, Patcher]:
    """For images and for videos."""
    if not load_json(model_path, "preprocessor_config.json").get("use_interleaved_frame_timestamp"):
        raise CheckpointError(f"{model_path}: only checkpoints with use_interleaved_frame_timestamp are supported")
    images, tower = Patcher.for_images(model_path), image_encoder_config(model_path).tower
    cut = (images.patch, images.temporal, images.merge)
    if cut != (tower.patch_size, tower.temporal_patch_size, tower.spatial_merge_size):
        raise CheckpointError(f"{model_path}: preprocessor_config.json has other patches than vision_config")
    return images, Patcher.for_videos(model_path)


def _times(video: ReadVideo, temporal: int) -> list[float]:
    """Seconds: of each step the middle between its first frame and its last."""
    apart = video.info.frames / video.info.rate / video.frames
    firsts = range(0, video.frames, temporal)
    return [(first + min(first + temporal, video.frames) - 1) / 2 * apart for first in firsts]
