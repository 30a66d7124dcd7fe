"""Three-dimensional rotary positions of a prompt (temporal, height, width), as the thinker and the talker use them.

The rules are those of `get_rope_index` of transformers' qwen3_omni_moe and qwen2_5_omni: text and audio count on in all
three dimensions; a picture's tokens take their place in time, row and column, counted from where the picture begins;
what follows goes on after the largest position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class RopeIndex:
    """Computes positions for prompts of one checkpoint; `merge` is the number of patches per side of a vision token.

    With `shared_brackets` the two tokens that begin a video with its sound have one position, and the two that end it.
    """

    image_token: int
    video_token: int
    audio_token: int
    vision_start: int
    audio_start: int
    positions_per_second: int
    merge: int
    shared_brackets: bool = False

    @staticmethod
    def from_config(config: dict[str, Any]) -> RopeIndex:
        """From a checkpoint's config.json."""
        thinker = config["thinker_config"]
        return RopeIndex(
            image_token=thinker["image_token_id"],
            video_token=thinker["video_token_id"],
            audio_token=thinker["audio_token_id"],
            vision_start=thinker["vision_start_token_id"],
            audio_start=thinker["audio_start_token_id"],
            positions_per_second=thinker["position_id_per_seconds"],
            merge=thinker["vision_config"]["spatial_merge_size"],
        )

    def __call__(
        self,
        input_ids: torch.Tensor,
        image_grids: torch.Tensor | None = None,
        video_grids: torch.Tensor | None = None,
        seconds_per_grid: Sequence[float] = (),
    ) -> tuple[torch.Tensor, int]:
        """Positions int64 [3, P] of `input_ids` [P], and the position of the next token minus P.

        Grids are int64 [n, 3] of (t, h, w) in patches, in prompt order; `seconds_per_grid` tells each video's time
        from one step of t to the next. Where a video's sound is interleaved with it, the two share their time.
        """
        ids = input_ids.tolist()
        if image_grids is None and video_grids is None:
            return torch.arange(len(ids)).expand(3, -1).contiguous(), 0

        images = iter([] if image_grids is None else image_grids.tolist())
        videos = iter([] if video_grids is None else zip(video_grids.tolist(), seconds_per_grid, strict=True))
        parts: list[torch.Tensor] = []
        start = following = 0
        for at, token in enumerate(ids[:-1]):
            if at < start or token != self.vision_start:
                continue
            kind = ids[at + 1]
            sound = kind == self.audio_start
            if kind not in (self.image_token, self.video_token, self.audio_start):
                continue
            begin = at + 1 + sound
            shared = int(sound and self.shared_brackets)
            parts.append(_count(following, begin - start - shared))
            following += begin - start - shared
            if shared:
                parts.append(_count(following - 1, 1))
            if kind == self.image_token:
                parts.append(self._grid(next(images), 1.0) + following)
                following = int(parts[-1].max()) + 1
            else:
                grid, seconds = next(videos)
                picture = self._grid(grid, seconds) + following
                block = self._interleaved(picture, ids[begin:], following) if sound else [picture]
                parts.extend(block)
                # after an interleaved video Hugging Face goes on from its last piece, which need not be the largest
                following = int(block[-1].max()) + 1
                start = begin + sum(part.shape[1] for part in block)
                if shared:
                    parts.append(_count(following, 1))
                    start += 1
                continue
            start = begin + parts[-1].shape[1]
        parts.append(_count(following, len(ids) - start))
        positions = torch.cat(parts, dim=1).to(torch.int64)
        return positions, int(positions.max()) + 1 - len(ids)

    def _grid(self, grid: Sequence[int], seconds: float) -> torch.Tensor:
        """Positions [3, tokens] of a picture's or video's tokens, from 0; time in position ids may have a fraction."""
        steps, rows, columns = grid[0], grid[1] // self.merge, grid[2] // self.merge
        time = torch.arange(steps) * (seconds * self.positions_per_second)
        return torch.cartesian_prod(time, torch.arange(rows).to(time.dtype), torch.arange(columns).to(time.dtype)).T

    def _interleaved(self, picture: torch.Tensor, ids: list[int], start: int) -> list[torch.Tensor]:
        """Pieces of a video with its sound: in the order of `ids`, cut where the first of the two is used up."""
        total = next(i for i, token in enumerate(ids) if token not in (self.video_token, self.audio_token))
        is_picture = torch.tensor(ids[:total]) == self.video_token
        positions = torch.empty(3, total)
        positions[:, is_picture] = picture.to(positions.dtype)
        positions[:, ~is_picture] = _count(start, int((~is_picture).sum())).to(positions.dtype)
        last = int(is_picture[-1])
        tail = total - 1 - int((is_picture != bool(last)).nonzero()[-1]) if (is_picture != bool(last)).any() else total
        return [piece for piece in positions.split([total - tail, tail], dim=1) if piece.shape[1]]


def _count(start: int, length: int) -> torch.Tensor:
    return (torch.arange(length) + start).expand(3, -1)
