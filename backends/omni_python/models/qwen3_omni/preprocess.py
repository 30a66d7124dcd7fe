"""A client's request to the thinker's prompt and the encoders' inputs: every check of what a client may ask is here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from omni_python.models.loading.checkpoint import CheckpointError, load_config, load_json
from omni_python.models.qwen3_omni.features import AudioFeatures, Patcher, audio_tokens
from omni_python.models.qwen3_omni.info import context, default_voice, voices
from omni_python.models.qwen3_omni.limits import RequestLimits
from omni_python.models.qwen3_omni.payloads import AudioInput, GenerationOptions, Preprocessed, Prompt, VisionInput
from omni_python.models.qwen3_omni.prompt import PromptBuilder, VideoSpan
from omni_python.models.qwen3_omni.rope import RopeIndex
from omni_python.preprocessing.audio import decode_audio, resample
from omni_python.preprocessing.image import decode_image
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.preprocessing.video import Sampling, decode_video, probe_video
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import (
    ROLES,
    AudioPart,
    ContentPart,
    ImagePart,
    Message,
    OmniRequest,
    TextPart,
    VideoPart,
)
from omni_python.proto.sampling import SamplingParams

MODALITIES = ("text", "audio")
TALKER_DEFAULTS = SamplingParams(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, max_tokens=4096)
"""As in transformers' Qwen3OmniMoeForConditionalGeneration.generate."""


@dataclass
class _Media:
    """The media of one request, decoded, in prompt order; `clips` are sound tracks of videos too. `pixels` of
    images and `frames` of videos are bounded."""

    clips: list[np.ndarray] = field(default_factory=list)
    clip_of_video: list[int | None] = field(default_factory=list)
    images: list[torch.Tensor] = field(default_factory=list)
    image_grids: list[tuple[int, int, int]] = field(default_factory=list)
    videos: list[torch.Tensor] = field(default_factory=list)
    video_grids: list[tuple[int, int, int]] = field(default_factory=list)
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
        self.speech = speech
        self._media = media or MediaLoader(MediaPolicy())
        self._limits = limits or RequestLimits()
        self.voices = voices(config)
        if speech and not self.voices:
            raise CheckpointError(f"checkpoint {str(model_path)!r} cannot speak: its talker_config has no speaker_id")
        self.default_voice = default_voice(self.voices)
        self.context = context(config)
        self.thinker_defaults = _thinker_defaults(model_path)
        self._window = int(config["thinker_config"]["audio_config"]["n_window"])
        self._prompt = PromptBuilder(model_path)
        self._positions = RopeIndex.from_config(config)
        self._hear = AudioFeatures(model_path)
        self._images = Patcher.for_images(model_path)
        self._videos = Patcher.for_videos(model_path)
        self._sampling = Sampling(multiple=self._videos.temporal)
        self._seconds_per_grid = self._videos.temporal / self._sampling.fps

    def __call__(self, request: OmniRequest) -> Preprocessed:
        _check_messages(request.messages)
        options = self._options(request)
        text = self._prompt.render(request.messages)
        media = self._load(self._media.load(request).messages)
        vision = _vision_input(media)
        audio = self._hear(media.clips) if media.clips else None
        input_ids = self._expand(text, media, audio)
        room = self.context - len(input_ids)
        if room < 1:
            raise self._too_long(len(input_ids))
        self._limits.check_prompt(len(input_ids))
        if options.thinker.max_tokens > room:
            options.thinker = msgspec.structs.replace(options.thinker, max_tokens=room)
        position_ids, rope_delta = self._positions(
            input_ids,
            vision.image_grids if vision else None,
            vision.video_grids if vision else None,
            [self._seconds_per_grid] * len(media.video_grids),
        )
        return Preprocessed(Prompt(input_ids, position_ids, rope_delta, options), vision, audio)

    # ---- what the client asks of the generating stages

    def _options(self, request: OmniRequest) -> GenerationOptions:
        return GenerationOptions(
            *self._sampling_params(request.sampling),
            speech=self._wants_speech(request.modalities),
            voice=self._voice(request.voice),
            stream=request.stream,
            echo_text=_text(request.messages[-1]) if request.echo else "",
        )

    def _wants_speech(self, modalities: list[str] | None) -> bool:
        """Whether to speak. `["audio"]` is the same as `["text", "audio"]`: speech is always spoken from a text."""
        if modalities is None:
            return self.speech
        unknown = next((modality for modality in modalities if modality not in MODALITIES), None)
        if unknown is not None or not modalities:
            what = "no modality is given" if unknown is None else f"unknown modality {unknown!r}"
            raise InvalidArgument(f"modalities: {what}; valid: {', '.join(MODALITIES)}")
        if "audio" in modalities and not self.speech:
            raise InvalidArgument('modalities: this pipeline cannot speak; ask for ["text"]')
        return "audio" in modalities

    def _voice(self, voice: str | None) -> str:
        if voice is None:
            return self.default_voice
        if voice.lower() not in self.voices:
            valid = f"valid: {', '.join(self.voices)}" if self.voices else "this checkpoint has no voices"
            raise InvalidArgument(f"voice: unknown voice {voice!r}; {valid}")
        return voice.lower()

    def _sampling_params(self, given: dict[str, Any]) -> tuple[SamplingParams, SamplingParams]:
        """The thinker's parameters (top level, then the object "thinker") and the talker's (the object "talker")."""
        stages = {stage: given.get(stage, {}) for stage in ("thinker", "talker")}
        for stage, values in stages.items():
            if not isinstance(values, dict):
                raise InvalidArgument(f"sampling_parameters.{stage} must be an object, not {type(values).__name__}")
        top = {key: value for key, value in given.items() if key not in stages}
        unknown = sorted(set(top) - set(SamplingParams.__struct_fields__))
        if unknown:
            valid = ", ".join((*SamplingParams.__struct_fields__, *stages))
            raise InvalidArgument(f"sampling_parameters: unknown key {unknown[0]!r}; valid keys: {valid}")
        if "stop" in stages["talker"]:
            raise InvalidArgument("sampling_parameters.talker: speech has no stop strings; put `stop` at the top level")
        thinker = self.thinker_defaults.override(top, "sampling_parameters")
        return (
            thinker.override(stages["thinker"], "sampling_parameters.thinker"),
            TALKER_DEFAULTS.override(stages["talker"], "sampling_parameters.talker"),
        )

    # ---- media

    def _load(self, messages: list[Message]) -> _Media:
        """Decode everything; stops as soon as the media alone fill the context."""
        media, tokens = _Media(), 0
        for where, part in _parts(messages):
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
                self._add_clip(media, self._clip(part), None)
                return len(media.clips[-1]) // self._hear.sample_rate * 13
            case ImagePart():
                decoded = decode_image(part.data, self._limits.image_pixels)
                media.pixels += decoded.shape[0] * decoded.shape[1]
                self._limits.check_images(media.pixels)
                image = self._images.resize(decoded)
                grid = self._images.grid(1, *image.shape[:2])
                media.images.append(self._images.patches(image[None]))
                media.image_grids.append(grid)
                return self._images.tokens(grid)
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
        media.videos.append(self._videos.patches(video.frames))
        media.video_grids.append(self._videos.grid(*video.frames.shape[:3]))
        return tokens

    def _add_clip(self, media: _Media, samples: np.ndarray, video: int | None) -> None:
        media.clips.append(samples)
        media.clip_of_video.append(video)
        self._limits.check_audio(sum(map(len, media.clips)) / self._hear.sample_rate)

    def _clip(self, part: AudioPart) -> np.ndarray:
        if part.data is not None:
            return decode_audio(part.data, self._hear.sample_rate, self._limits.audio_seconds)
        if part.samples is None or part.sample_rate is None:
            raise InvalidArgument("audio needs an encoded file, or samples with their sample rate")
        return resample(np.asarray(part.samples), part.sample_rate, self._hear.sample_rate, self._limits.audio_seconds)

    def _expand(self, text: str, media: _Media, audio: AudioInput | None) -> torch.Tensor:
        counts = [audio_tokens(frames, self._window) for frames in (audio.lengths.tolist() if audio else [])]
        sound = {video: count for video, count in zip(media.clip_of_video, counts, strict=True) if video is not None}
        return self._prompt.expand(
            text,
            audio_tokens=[count for video, count in zip(media.clip_of_video, counts, strict=True) if video is None],
            image_tokens=[self._images.tokens(grid) for grid in media.image_grids],
            videos=[
                VideoSpan(grid, self._seconds_per_grid, sound.get(video, 0))
                for video, grid in enumerate(media.video_grids)
            ],
        )

    def _too_long(self, tokens: int) -> InvalidArgument:
        return InvalidArgument(
            f"the prompt has at least {tokens} tokens; the context holds {self.context}, answer included"
        )


def _check_messages(messages: list[Message]) -> None:
    if not messages:
        raise InvalidArgument("the request has no message and no text")
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidArgument(f"messages[{index}]: unknown role {message.role!r}; valid: {', '.join(ROLES)}")
        if message.role != "user" and not all(isinstance(part, TextPart) for part in message.content):
            raise InvalidArgument(f"messages[{index}]: media are accepted in turns of the role user only")
    last = messages[-1]
    if last.role != "user":
        raise InvalidArgument(f"the last message must be of the role user, not {last.role}")
    if not _text(last).strip() and all(isinstance(part, TextPart) for part in last.content):
        raise InvalidArgument("the prompt is empty; give a text or media")


def _parts(messages: list[Message]) -> Iterator[tuple[str, ContentPart]]:
    """Every content part, with the words by which an error tells where it is."""
    for turn, message in enumerate(messages):
        for index, part in enumerate(message.content):
            yield f"messages[{turn}].content[{index}]", part


def _text(message: Message) -> str:
    return "".join(part.text for part in message.content if isinstance(part, TextPart))


def _vision_input(media: _Media) -> VisionInput | None:
    if not (media.images or media.videos):
        return None
    return VisionInput(
        image_pixels=torch.cat(media.images) if media.images else None,
        image_grids=torch.tensor(media.image_grids) if media.images else None,
        video_pixels=torch.cat(media.videos) if media.videos else None,
        video_grids=torch.tensor(media.video_grids) if media.videos else None,
    )


def _thinker_defaults(model_path: str | Path) -> SamplingParams:
    """Greedy, unless the checkpoint's generation_config.json says `do_sample`; lengths and penalties from there too."""
    try:
        given = load_json(model_path, "generation_config.json")
    except CheckpointError:
        given = {}
    values: dict[str, Any] = {
        "repetition_penalty": given.get("repetition_penalty"),
        "max_tokens": given.get("max_new_tokens"),
    }
    if given.get("do_sample"):
        values["temperature"] = given.get("temperature") or 1.0
        values |= {key: given.get(key) for key in ("top_p", "top_k")}
    return SamplingParams().override(
        {key: value for key, value in values.items() if value is not None}, "generation_config.json"
    )
