"""Sizes of the language model, from a checkpoint's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_python.layers.decoder import DecoderConfig
from omni_python.models.loading.checkpoint import CheckpointError, load_config

MODEL_TYPE = "fish_qwen3_omni"


@dataclass(frozen=True)
class S2Config:
    """`trunk` reads the text and says a frame's first code, `head` the frame's other codes.

    The token of code c is `semantic_start` + c; `end` ends the speech. Of the codebooks' `codes` codes all but the
    first book's use fewer. `context` is the longest sequence.
    """

    trunk: DecoderConfig
    head: DecoderConfig
    vocab: int
    codes: int
    books: int
    semantic_start: int
    end: int
    context: int


def model_config(directory: str | Path) -> S2Config:
    """Raises `CheckpointError` for another family's checkpoint, and for what S2-Pro's config never says."""
    config = load_config(directory)
    if config.get("model_type") != MODEL_TYPE:
        raise CheckpointError(f"{directory}: model_type is {config.get('model_type')!r}, not {MODEL_TYPE!r}")
    try:
        text, audio = config["text_config"], config["audio_decoder_config"]
        start = config["semantic_start_token_id"]
        found = S2Config(
            trunk=_decoder(text),
            head=_decoder(audio),
            vocab=text["vocab_size"],
            codes=audio["vocab_size"],
            books=audio["num_codebooks"],
            semantic_start=start,
            end=config["eos_token_id"],
            context=text["max_seq_len"],
        )
        semantic = config["semantic_end_token_id"] - start + 1
    except KeyError as error:
        raise CheckpointError(f"{directory}: config.json has no {error}") from None
    if not text.get("tie_word_embeddings", True) or found.trunk.hidden != found.head.hidden:
        raise CheckpointError(f"{directory}: only tied embeddings and equal sizes of both decoders are supported")
    if semantic != found.codes:
        raise CheckpointError(f"{directory}: {semantic} semantic tokens for {found.codes} codes")
    return found


def _decoder(config: Mapping[str, Any]) -> DecoderConfig:
    for key in ("attention_qkv_bias", "attention_o_bias", "use_moe"):
        if config.get(key):
            raise CheckpointError(f"config.json: {key} is not supported")
    return DecoderConfig(
        hidden=config["dim"],
        layers=config["n_layer"],
        heads=config["n_head"],
        kv_heads=config["n_local_heads"],
        head_dim=config["head_dim"],
        intermediate=config["intermediate_size"],
        rope_theta=config["rope_base"],
        norm_eps=config["norm_eps"],
        qk_norm=bool(config.get("attention_qk_norm")),
    )
