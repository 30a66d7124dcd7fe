"""The tokenizer of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import tokenizers  # type: ignore[import-untyped]

from omni_python.models.loading.checkpoint import CheckpointError


def load_tokenizer(path: str | Path) -> tokenizers.Tokenizer:
    """The byte-level BPE tokenizer of a checkpoint directory."""
    file = Path(path) / "tokenizer.json"
    if file.exists():
        return tokenizers.Tokenizer.from_file(str(file))
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path).backend_tokenizer  # from vocab.json and merges.txt
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint {str(path)!r} has no usable tokenizer: {error}") from error
