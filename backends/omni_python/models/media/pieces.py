"""Pictures and videos cut where attention does not reach across, and what goes through an encoder in one forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

Grid = tuple[int, int, int]
"""Temporal steps, rows and columns of patches of a picture or video."""


@dataclass(frozen=True)
class VisionPiece:
    """Whole temporal steps of one picture or video: `pixels` [t * h * w, values of a patch], `grid` (t, h, w)."""

    pixels: torch.Tensor
    grid: Grid

    @property
    def size(self) -> int:
        return len(self.pixels)


def vision_pieces(pixels: torch.Tensor, grids: torch.Tensor, most: int) -> Iterator[VisionPiece]:
    """Of pictures and videos with `pixels` [patches, values], one after the other, and `grids` int64 [n, 3]: pieces in
    order, of at most `most` patches unless one step has more. The tower attends within a step alone, so what is
    computed of a piece is what would be computed of the whole."""
    start = 0
    for steps, height, width in grids.tolist():
        at_once = max(1, most // (height * width))
        for first in range(0, steps, at_once):
            grid = (min(at_once, steps - first), height, width)
            size = grid[0] * height * width
            yield VisionPiece(pixels[start : start + size], grid)
            start += size


def joined(pieces: Sequence[VisionPiece]) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """The pieces' pixels [patches, values] one after the other, and their grids int64 [n, 3]; None where none are."""
    if not pieces:
        return None, None
    return torch.cat([piece.pixels for piece in pieces]), torch.tensor([piece.grid for piece in pieces])


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


P = TypeVar("P", bound=_Sized)


def packed(pieces: Sequence[P], most: int) -> Iterator[list[P]]:
    """`pieces` in order, as many together as have at most `most` patches or frames; a larger one goes alone."""
    together: list[P] = []
    total = 0
    for piece in pieces:
        if together and total + piece.size > most:
            yield together
            together, total = [], 0
        together.append(piece)
        total += piece.size
    if together:
        yield together
