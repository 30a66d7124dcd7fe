"""What tiny checkpoints are made of: numbers and tokenizers that are the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import tokenizers  # type: ignore[import-untyped]


def named_noise(name: str, shape: Sequence[int], seed: int) -> np.ndarray:
    """Standard normal float64 numbers of numpy's PCG64, a stream of its own for each tensor: adding one changes no
    other."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))
    return generator.standard_normal(tuple(shape))


def byte_tokenizer(special: Sequence[str]) -> tokenizers.Tokenizer:
    """A byte-level tokenizer without merges: ids 0 to 255 are bytes, from 256 on the `special` tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer
