"""Conversations to token ids, with one placeholder for each media embedding, as transformers' Qwen2_5OmniProcessor
writes them, and to rotary positions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from omni_python.layers.rope_index import RopeIndex
from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.media.pieces import Grid
from omni_python.models.qwen2_5_omni.features import Media, audio_tokens, vision_tokens
from omni_python.models.qwen2_5_omni.payloads import MediaFeatures
from omni_python.models.text.chat_template import load_template
from omni_python.models.text.conversation import render
from omni_python.proto.request import Message

MEDIA_TOKENS = (
    "<|IMAGE|>",
    "<|VIDEO|>",
    "<|AUDIO|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
)


class PromptBuilder:
    def __init__(self, model_path: str | Path, thinker: Any, seconds_per_grid: float) -> None:
        """`thinker` is the `thinker_config` of the checkpoint's config.json. Raises `CheckpointError`."""
        self._tokenizer = load_tokenizer(model_path)
        self._template = load_template(model_path)
        self._audio, self._image, self._video = (thinker[f"{kind}_token_index"] for kind in ("audio", "image", "video"))
        self._audio_start, self._audio_end = thinker["audio_start_token_id"], thinker["audio_end_token_id"]
        self._merge = thinker["vision_config"].get("spatial_merge_size", 2)
        self._seconds_per_grid = seconds_per_grid
        self._per_second = thinker["position_id_per_seconds"]
        self._per_chunk = int(thinker["position_id_per_seconds"] * thinker["seconds_per_chunk"])
        self._positions = RopeIndex(
            image_token=self._image,
            video_token=self._video,
            audio_token=self._audio,
            vision_start=thinker["vision_start_token_id"],
            audio_start=self._audio_start,
            positions_per_second=self._per_second,
            merge=self._merge,
            shared_brackets=True,
        )

    def render(self, messages: Sequence[Message]) -> str:
        """Raises `InvalidArgument` where a text contains one of `MEDIA_TOKENS`."""
        return render(self._template, messages, MEDIA_TOKENS)

    def expand(self, text: str, media: Media, audio_lengths: Sequence[int]) -> torch.Tensor:
        """Token ids int64 [P] of a rendered text; `audio_lengths` are the log-mel frames of each clip."""
        heard = [audio_tokens(frames) for frames in audio_lengths]
        tracks = set(media.sounds.values())
        clips = iter([count for clip, count in enumerate(heard) if clip not in tracks])
        images = iter(media.images)
        videos = iter(enumerate(media.videos))
        ids: list[int] = []
        try:
            for token in self._tokenizer.encode(text).ids:
                if token == self._audio:
                    ids.extend([token] * next(clips))
                elif token == self._image:
                    ids.extend([token] * vision_tokens(next(images).grid, self._merge))
                elif token == self._video:
                    video, piece = next(videos)
                    ids.extend(self._video_ids(piece.grid, heard[media.sounds[video]] if video in media.sounds else 0))
                else:
                    ids.append(token)
        except StopIteration:
            raise _mismatch("more") from None
        unused: tuple[Iterator[object], ...] = (clips, images, videos)
        if any(next(rest, None) is not None for rest in unused):
            raise _mismatch("fewer")
        return torch.tensor(ids)

    def positions(self, ids: torch.Tensor, features: MediaFeatures | None) -> tuple[torch.Tensor, int]:
        """int64 [3, P], and the position of the next token minus P."""
        images, videos = (features.image_grids, features.video_grids) if features else (None, None)
        seconds = [self._seconds_per_grid] * (0 if videos is None else len(videos))
        return self._positions(ids, images, videos, seconds)

    def _video_ids(self, grid: Grid, sound: int) -> Iterator[int]:
        """With its sound, chunks of `seconds_per_chunk` of both in turn."""
        steps, per_step = grid[0], vision_tokens((1, *grid[1:]), self._merge)
        if not sound:
            yield from [self._video] * (steps * per_step)
            return
        times = [step * self._seconds_per_grid * self._per_second for step in range(steps)]
        yield self._audio_start
        for begin in range(0, max(math.floor(times[-1]) + 1, sound), self._per_chunk):
            shown = sum(begin <= time < begin + self._per_chunk for time in times)
            yield from [self._video] * (shown * per_step)
            yield from [self._audio] * min(max(sound - begin, 0), self._per_chunk)
        yield self._audio_end


def _mismatch(what: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint's chat template writes {what} media placeholders than there are media parts"
    )
