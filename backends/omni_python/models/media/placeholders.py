"""Where a prompt's media stand, and their embeddings in their places."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_python.proto.errors import OmniError


@dataclass(frozen=True)
class MediaTokens:
    """Ids of the prompt's placeholders."""

    image: int
    video: int
    audio: int

    def places(self, ids: torch.Tensor) -> torch.Tensor:
        """Of `ids` int64 [P] those that stand for media: bool [P]."""
        return torch.isin(ids, torch.tensor([self.image, self.video, self.audio], device=ids.device))


def put_media(embeds: torch.Tensor, at: torch.Tensor, features: torch.Tensor | None, kind: str) -> None:
    """Write `features` [n, H] into `embeds` [P, H] at the places `at` [n]. Raises `OmniError` where these are more or
    fewer."""
    given = 0 if features is None else len(features)
    if len(at) != given:
        raise OmniError(f"the prompt has {len(at)} {kind} placeholders, but there are {given} {kind} embeddings")
    if features is not None:
        embeds.index_copy_(0, at.to(embeds.device), features.to(embeds.device, embeds.dtype))
