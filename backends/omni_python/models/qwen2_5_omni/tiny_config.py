"""The config.json of a tiny Qwen2.5-Omni checkpoint: the published one's fields, small sizes, ids of its own."""

from __future__ import annotations

from typing import Any

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
)
IDS = {name: 256 + index for index, name in enumerate(SPECIAL)}
TEXT_PAD, TEXT_START, TEXT_END, VOICE_START = 300, 301, 302, 310
"""Of the thinker's vocabulary, behind what the tokenizer knows, as in the published one."""


def tiny_config() -> dict[str, Any]:
    """The config.json: the published one's fields."""
    media = {
        "audio_token_index": IDS["<|AUDIO|>"],
        "image_token_index": IDS["<|IMAGE|>"],
        "video_token_index": IDS["<|VIDEO|>"],
        "audio_start_token_id": IDS["<|audio_bos|>"],
        "audio_end_token_id": IDS["<|audio_eos|>"],
        "vision_start_token_id": IDS["<|vision_bos|>"],
        "vision_end_token_id": IDS["<|vision_eos|>"],
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
    }
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "dtype": "float32",
        "enable_audio_output": True,
        "enable_talker": True,
        "thinker_config": {**_thinker(64), **media, "eos_token_id": IDS["<|im_end|>"]},
        "talker_config": {**_talker(64), **media},
        "token2wav_config": _token2wav(),
    }


def _decoder(hidden: int, layers: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [2, 3, 3]},
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
    }


def _thinker(hidden: int) -> dict[str, Any]:
    return {
        "model_type": "qwen2_5_omni_thinker",
        "user_token_id": 0,
        "audio_config": {
            "model_type": "qwen2_5_omni_audio_encoder",
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "num_mel_bins": 128,
            "max_source_positions": 1500,
            "n_window": 100,
            "output_dim": hidden,
        },
        "vision_config": {
            "model_type": "qwen2_5_omni_vision_encoder",
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "out_hidden_size": hidden,
        },
        "text_config": {"model_type": "qwen2_5_omni_text", "vocab_size": 320, **_decoder(hidden, 3)},
        "tie_word_embeddings": False,
    }


def _talker(embedding: int) -> dict[str, Any]:
    return {
        "model_type": "qwen2_5_omni_talker",
        "vocab_size": 128,
        "embedding_size": embedding,
        **_decoder(48, 2),
        "tts_text_start_token_id": TEXT_START,
        "tts_text_end_token_id": TEXT_END,
        "tts_text_pad_token_id": TEXT_PAD,
        "tts_codec_pad_token_id": 100,
        "tts_codec_start_token_id": 101,
        "tts_codec_end_token_id": 102,
        "tts_codec_mask_token_id": 104,
        "spatial_merge_size": 2,
    }


def _token2wav() -> dict[str, Any]:
    return {
        "model_type": "qwen2_5_omni_token2wav",
        "dit_config": {
            "model_type": "qwen2_5_omni_dit",
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "head_dim": 16,
            "ff_mult": 2,
            "emb_dim": 16,
            "block_size": 24,
            "look_ahead_layers": [2],
            "look_backward_layers": [0, 3],
            "repeats": 2,
            "num_embeds": 63,
            "mel_dim": 80,
            "dropout": 0.1,
            "enc_emb_dim": 12,
            "enc_dim": 16,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_kernel_sizes": [5, 3, 3, 3, 1],
            "enc_dilations": [1, 2, 3, 4, 1],
            "enc_attention_channels": 8,
            "enc_res2net_scale": 2,
            "enc_se_channels": 8,
        },
        "bigvgan_config": {
            "model_type": "qwen2_5_omni_bigvgan",
            "mel_dim": 80,
            "upsample_initial_channel": 64,
            "resblock_kernel_sizes": [3, 7],
            "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]],
            "upsample_rates": [5, 3, 2, 2, 2, 2],
            "upsample_kernel_sizes": [11, 7, 4, 4, 4, 4],
        },
    }
