"""Decoded media to what the encoders take, by transformers' own feature extractors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from omni_python.models.qwen2_5_omni.payloads import MediaFeatures
from omni_python.preprocessing.audio import decode_audio, resample
from omni_python.preprocessing.image import decode_image
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart, ImagePart, Message, TextPart


@dataclass
class Media:
    """Of one request, in prompt order: mono float32 [n] and uint8 [height, width, 3]."""

    clips: list[np.ndarray] = field(default_factory=list)
    images: list[np.ndarray] = field(default_factory=list)


class Extractor:
    """With the checkpoint's preprocessor_config.json."""

    def __init__(self, model_path: str | Path, max_seconds: float, max_pixels: int) -> None:
        """At most `max_seconds` of sound and `max_pixels` of pictures as they were sent, of a request together."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
        from transformers.models.whisper.feature_extraction_whisper import WhisperFeatureExtractor

        self._hear = WhisperFeatureExtractor.from_pretrained(model_path)
        self._see = Qwen2VLImageProcessorPil.from_pretrained(model_path)
        self._max_seconds = max_seconds
        self._max_pixels = max_pixels

    def decode(self, messages: Sequence[Message]) -> Media:
        """Raises `InvalidArgument` naming the part that cannot be read."""
        media, seconds, pixels = Media(), self._max_seconds, self._max_pixels
        for turn, message in enumerate(messages):
            for index, part in enumerate(message.content):
                try:
                    match part:
                        case AudioPart():
                            media.clips.append(self._clip(part, seconds))
                            seconds -= len(media.clips[-1]) / self._hear.sampling_rate
                        case ImagePart():
                            media.images.append(decode_image(part.data, pixels))
                            pixels -= media.images[-1].shape[0] * media.images[-1].shape[1]
                except InvalidArgument as error:
                    raise InvalidArgument(f"messages[{turn}].content[{index}]: {error}") from error
        return media

    def __call__(self, media: Media) -> MediaFeatures | None:
        if not (media.clips or media.images):
            return None
        found = MediaFeatures()
        if media.clips:
            # Hugging Face pads to 300 s. No frame sees more silence than this, and as there it is whole frames in all,
            # which matters where the silence comes first.
            hop = self._hear.hop_length
            longest = -(-(max(map(len, media.clips)) + 2 * self._hear.n_fft) // hop) * hop
            heard = self._hear(
                media.clips,
                sampling_rate=self._hear.sampling_rate,
                padding="max_length",
                max_length=longest,
                return_attention_mask=True,
                return_tensors="pt",
            )
            mask = heard["attention_mask"].bool()
            found.audio = heard["input_features"].permute(0, 2, 1)[mask].T.contiguous()
            found.audio_lengths = mask.sum(dim=1)
        if media.images:
            seen = self._see(images=media.images, return_tensors="pt")
            found.image, found.image_grids = seen["pixel_values"], seen["image_grid_thw"]
        return found

    def _clip(self, part: AudioPart, seconds: float) -> np.ndarray:
        rate: int = self._hear.sampling_rate
        if part.data is not None:
            clip = decode_audio(part.data, rate, seconds)
        elif part.samples is None or part.sample_rate is None:
            raise InvalidArgument("audio needs an encoded file, or samples with their sample rate")
        else:
            clip = resample(np.asarray(part.samples), part.sample_rate, rate, seconds)
        if len(clip) < 2 * self._hear.n_fft:
            raise InvalidArgument(
                f"audio of {len(clip)} samples at {rate} Hz; at least {2 * self._hear.n_fft} are needed"
            )
        return clip


def refuse_videos(messages: Sequence[Message]) -> None:
    """Raises `InvalidArgument` naming the part."""
    for turn, message in enumerate(messages):
        for index, part in enumerate(message.content):
            if not isinstance(part, TextPart | AudioPart | ImagePart):
                raise InvalidArgument(
                    f"messages[{turn}].content[{index}]: this pipeline takes text, audio and images, no videos yet"
                )


def audio_tokens(frames: int) -> int:
    """Embeddings that the audio encoder makes of so many log-mel frames: a convolution and a mean, of stride 2 both."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def image_tokens(grid: Sequence[int], merge: int) -> int:
    """Embeddings that the vision encoder makes of a picture of (t, h, w) patches."""
    steps, rows, columns = grid
    return steps * (rows // merge) * (columns // merge)
