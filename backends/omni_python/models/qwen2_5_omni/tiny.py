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
from omni_python.models.qwen2_5_omni.tiny_config import SPECIAL, VOICE_START, tiny_config
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
