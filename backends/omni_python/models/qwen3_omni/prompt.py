"""Conversations to token ids: the checkpoint's chat template, then one placeholder id per media embedding.

The expansion equals that of transformers' Qwen3OmniMoeProcessor (5.24), done on ids instead of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers  # type: ignore[import-untyped]
import torch

from omni_python.models.loading.checkpoint import CheckpointError, load_config
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.text.chat_template import load_template
from omni_python.models.text.conversation import render
from omni_python.proto.request import Message

MEDIA_TOKENS = (
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
)


@dataclass(frozen=True)
class VideoSpan:
    """One video in the prompt: `grid` (t, h, w) in patches, and the tokens of its sound track (0: none or not used)."""

    grid: tuple[int, int, int]
    seconds_per_grid: float
    sound_tokens: int = 0


class PromptBuilder:
    """Renders and tokenizes with what the checkpoint directory holds."""

    def __init__(self, model_path: str | Path) -> None:
        config = load_config(model_path)
        thinker = config["thinker_config"]
        self.tokenizer = load_tokenizer(model_path)
        self._template = load_template(model_path)
        self._image = thinker["image_token_id"]
        self._video = thinker["video_token_id"]
        self._audio = thinker["audio_token_id"]
        self._audio_start = thinker["audio_start_token_id"]
        self._audio_end = _audio_end(thinker, self.tokenizer)
        self._positions_per_second = thinker["position_id_per_seconds"]
        self._merge = thinker["vision_config"]["spatial_merge_size"]

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation as text that ends where the answer begins, with one placeholder for each media part.

        Raises `InvalidArgument` where a text contains one of `MEDIA_TOKENS`, which would be taken for media.
        """
        return render(self._template, messages, MEDIA_TOKENS)

    def expand(
        self,
        text: str,
        audio_tokens: Sequence[int] = (),
        image_tokens: Sequence[int] = (),
        videos: Sequence[VideoSpan] = (),
    ) -> torch.Tensor:
        """Token ids int64 [P] of a rendered text, each placeholder repeated as often as its medium has tokens.

        The sequences are in prompt order; `audio_tokens` leaves out the sound tracks of videos.
        """
        audio, images, clips = iter(audio_tokens), iter(image_tokens), iter(videos)
        ids: list[int] = []
        try:
            for token in self.tokenizer.encode(text).ids:
                if token == self._audio:
                    ids.extend([token] * next(audio))
                elif token == self._image:
                    ids.extend([token] * next(images))
                elif token == self._video:
                    ids.extend(self._video_ids(next(clips)))
                else:
                    ids.append(token)
        except StopIteration:
            raise _mismatch("more") from None
        unused: tuple[Iterator[object], ...] = (audio, images, clips)
        if any(next(rest, None) is not None for rest in unused):
            raise _mismatch("fewer")
        return torch.tensor(ids, dtype=torch.int64)

    def _video_ids(self, video: VideoSpan) -> Iterator[int]:
        steps, rows, columns = video.grid
        per_step = (rows // self._merge) * (columns // self._merge)
        if not video.sound_tokens:
            yield from [self._video] * (steps * per_step)
            return
        yield self._audio_start
        heard = 0
        for step in range(steps):
            # a step's tokens come once the sound, which has one token a position, has got to its time
            time = step * video.seconds_per_grid * self._positions_per_second
            while heard < video.sound_tokens and heard < time:
                yield self._audio
                heard += 1
            yield from [self._video] * per_step
        yield from [self._audio] * (video.sound_tokens - heard)
        yield self._audio_end


def _audio_end(thinker: dict[str, int], tokenizer: tokenizers.Tokenizer) -> int:
    """The id of `<|audio_end|>`, which not every config.json names."""
    given = thinker.get("audio_end_token_id")
    return int(tokenizer.token_to_id("<|audio_end|>") if given is None else given)


def _mismatch(what: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint's chat template writes {what} media placeholders than there are media parts"
    )
