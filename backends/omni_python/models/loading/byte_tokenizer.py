"""A tokenizer for tiny checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BYTES = 256
"""Tokens before the special ones."""


def byte_tokenizer(special: Sequence[str]) -> Any:
    """Byte-level, without merges: a token for each byte, and then one for each of `special`."""
    from tokenizers import (  # type: ignore[import-untyped]
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer
