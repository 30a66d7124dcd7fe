"""A tiny Qwen2.5-Omni checkpoint with random weights, the same on every machine, in the published checkpoint's format.

It has every part of the published model, with its rates: 50 codes a second, 480 samples each at 24 kHz.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_python.models.loading.byte_tokenizer import byte_tokenizer
from omni_python.models.loading.checkpoint import checkpoint_hash
from omni_python.models.loading.tiny import named_noise
from omni_python.models.qwen2_5_omni.voices import FILE

HEAD_SCALE = 4.0
"""Makes the logits of every head that much sharper than unit variance, so greedy choices have clear margins."""
CODE_SCALE = 4.0
"""On the embeddings of codes, so that the next code depends on the last one more than on all else."""
ATTENTION_SCALE = 2.0
"""On queries and keys, so that attention looks at few tokens, and answers differ with their questions."""
SPECTRUM_SCALE, WAVE_SCALE = 0.3, 0.01
"""On what makes the spectrum, so that its exponential stays small, and on the last convolution: keeps the waveform
inside -1..1, for clipping hides differences."""

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

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif part['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif part['type'] == 'video' %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(out: str | Path, seed: int = 0) -> str:
    """Write a checkpoint directory to `out` (created if missing) and return its `checkpoint_hash`."""
    from safetensors.torch import save

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    config = tiny_config()
    weights = {name: torch.from_numpy(_weights(name, shape, seed)) for name, shape in tensor_shapes(config).items()}
    (out / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    torch.save(_voices(config["token2wav_config"]["dit_config"], seed), out / FILE)
    byte_tokenizer(SPECIAL).save(str(out / "tokenizer.json"))
    for name, content in (
        ("config.json", config),
        ("preprocessor_config.json", _PREPROCESSOR),
        ("tokenizer_config.json", _TOKENIZER),
        ("chat_template.json", {"chat_template": TEMPLATE}),
    ):
        (out / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    return checkpoint_hash(out)


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of a published checkpoint with this config.json."""
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniConfig
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniForConditionalGeneration

    with torch.device("meta"):
        model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig.from_dict(config))
    return {name: tuple(tensor.shape) for name, tensor in sorted(model.state_dict().items())}


def _weights(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Float32 weights with about unit gain: N(0, 1 / fan_in) for matrices and convolutions."""
    noise = named_noise(name, shape, seed)
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("alpha", "beta"):  # of the snake activation, which takes their exponential
        values = 0.1 * noise
    elif leaf == "bias":
        values = 0.02 * noise
    elif len(shape) == 1:  # norms
        values = 1.0 + 0.1 * noise
    elif "embed_tokens" in name or "codec_embed" in name:
        values = noise
        if name.startswith("talker."):
            values *= CODE_SCALE
    else:
        values = noise / math.sqrt(math.prod(shape[1:]))
        if name.endswith(("lm_head.weight", "codec_head.weight")):
            values *= HEAD_SCALE
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            values *= ATTENTION_SCALE
        elif name.endswith("proj_out.weight"):
            values *= SPECTRUM_SCALE
        elif name.endswith("conv_post.weight"):
            values *= WAVE_SCALE
    return values.astype(np.float32)


def _voices(dit: dict[str, Any], seed: int) -> dict[str, dict[str, Any]]:
    voices = {}
    for index, (name, frames) in enumerate((("Chelsie", 60), ("Ethan", 50))):
        cond = named_noise(f"{name}.cond", (1, dit["enc_emb_dim"]), seed)
        mel = named_noise(f"{name}.ref_mel", (1, frames, dit["mel_dim"]), seed)
        voices[name] = {
            "bos_token": VOICE_START + index,
            "cond": torch.from_numpy(cond.astype(np.float32)),
            "ref_mel": torch.from_numpy(mel.astype(np.float32)),
        }
    return voices


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


_PREPROCESSOR = {
    "processor_class": "Qwen2_5OmniProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 300,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "left",
    "padding_value": 0.0,
    "dither": 0.0,
    "return_attention_mask": True,
}

_TOKENIZER = {
    "tokenizer_class": "Qwen2Tokenizer",
    "processor_class": "Qwen2_5OmniProcessor",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "bos_token": None,
    "unk_token": None,
    "model_max_length": 32768,
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
