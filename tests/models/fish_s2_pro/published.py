"""The published checkpoint, as far as a test can have it."""

from __future__ import annotations

from typing import Any


def published_config() -> dict[str, Any]:
    """The fields of the published config.json that tell sizes."""
    common = {
        "dim": 2560,
        "head_dim": 128,
        "intermediate_size": 9728,
        "n_head": 32,
        "n_local_heads": 8,
        "norm_eps": 1e-6,
        "rope_base": 1000000,
    }
    return {
        "model_type": "fish_qwen3_omni",
        "eos_token_id": 151645,
        "semantic_start_token_id": 151678,
        "semantic_end_token_id": 155773,
        "text_config": {
            **common,
            "attention_qk_norm": True,
            "max_seq_len": 32768,
            "n_layer": 36,
            "tie_word_embeddings": True,
            "vocab_size": 155776,
        },
        "audio_decoder_config": {
            **common,
            "attention_qk_norm": False,
            "max_seq_len": 11,
            "n_layer": 4,
            "num_codebooks": 10,
            "tie_word_embeddings": False,
            "vocab_size": 4096,
        },
    }
