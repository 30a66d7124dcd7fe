"""The published checkpoint, as far as a test can have it."""

from __future__ import annotations

from typing import Any

from omni_python.models.ming_omni import tiny

THINKER = {
    "vocab_size": 157184,
    "hidden_size": 4096,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "eos_token_id": 156895,
    "image_patch_token": 157157,
    "image_start_token": 157158,
    "video_patch_token": 157175,
    "video_start_token": 157159,
    "rope_scaling": {"type": "video_rope", "factor": None},
}
"""Of the published config.json what differs from the tiny one's."""
VISION = {
    "deepstack_visual_indexes": [8, 16, 24],
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 4096,
}
TALKER_LLM = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
}
WHISPER = {"n_mels": 128, "n_ctx": 15000, "n_state": 1280, "n_head": 20, "n_layer": 32}
BLOCKS = {"depth": 8, "hidden_size": 1024, "num_heads": 16, "mlp_ratio": 4.0, "in_channels": 64}
"""Of both transformers over latents, as M* records them."""


def published_configs() -> dict[str, dict[str, Any]]:
    """The config.json of each folder, with the published sizes; the AudioVAE's are not known, and the tiny one's."""
    config, talker, llm = tiny.tiny_config(), tiny.tiny_talker(), tiny.tiny_llm()
    config["llm_config"] |= THINKER
    config["vision_config"] |= VISION
    config["audio_config"]["whisper_encoder_config"] = WHISPER
    for blocks in ("flowmodel", "aggregator"):
        talker[blocks] |= BLOCKS
    return {"": config, "talker": talker, "talker/llm": llm | TALKER_LLM, "talker/vae": tiny.tiny_vae()}
