"""What tiny checkpoints are made of: numbers that are the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def named_noise(name: str, shape: Sequence[int], seed: int) -> np.ndarray:
    """Standard normal float64 numbers of numpy's PCG64, a stream of its own for each tensor: adding one changes no
    other."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))
    return generator.standard_normal(tuple(shape))
