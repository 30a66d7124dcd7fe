"""A tiny Qwen3-Omni checkpoint with random weights, the same on every machine.

It has every part of the published model (audio and vision towers with deepstack, mixture-of-experts thinker and
talker, code predictor, code2wav) in the layout of a Hugging Face directory, so tests run the real loading code.
Weights come from numpy's PCG64, one stream a tensor, seeded by the tensor's name: adding a tensor changes no other.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_python.models.loading.checkpoint import checkpoint_hash
from omni_python.models.loading.tiny import named_noise
from omni_python.models.qwen3_omni.tiny_config import ASSETS, Dimensions, tiny_config, token_ids

HEAD_SCALE = 4.0
"""Makes the logits of every head that much sharper than unit variance, so greedy choices have clear margins."""
END_OF_TURN_SCALE = 2.0
END_OF_SPEECH_SCALE = 1.3
"""On top of it for the rows of `<|im_end|>` and of the codec's end, so random answers end by themselves at times."""
WAVE_SCALE = 0.003
"""On the last convolution: keeps the waveform inside -1..1, for clipping hides differences."""
DEFAULT_HASH = "0fcd61a8bd917d7034f2851a4311a33c54146c35e988edb28dbfbc9fbc5c09b0"
"""`checkpoint_hash` of the checkpoint with the default dimensions and seed."""


def build(out: str | Path, dimensions: Dimensions | None = None, seed: int = 0) -> str:
    """Write a checkpoint directory to `out` (created if missing) and return its `checkpoint_hash`."""
    return build_from_config(out, tiny_config(dimensions or Dimensions()), seed)


def build_from_config(out: str | Path, config: dict[str, Any], seed: int = 0) -> str:
    """The same for any config.json whose token ids are those of the tokenizer asset (`with_token_ids` puts them in)."""
    from safetensors.torch import save

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: torch.from_numpy(_random_tensor(name, shape, seed))
        for name, shape in sorted(tensor_shapes(config).items())
    }
    weights["thinker.lm_head.weight"][config["im_end_token_id"]] *= END_OF_TURN_SCALE
    weights["talker.codec_head.weight"][config["talker_config"]["codec_eos_token_id"]] *= END_OF_SPEECH_SCALE
    last_convolution = f"code2wav.decoder.{len(config['code2wav_config']['upsample_rates']) + 2}.conv.weight"
    weights[last_convolution] *= WAVE_SCALE

    (out / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", _generation_config())
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copyfile(ASSETS / name, out / name)
    write_settings(out)
    return checkpoint_hash(out)


def write_settings(out: Path) -> None:
    """The settings of the processors and of the tokenizer, which are the published checkpoint's."""
    _write_json(out / "preprocessor_config.json", _PREPROCESSOR)
    _write_json(out / "video_preprocessor_config.json", _VIDEO_PREPROCESSOR)
    _write_json(out / "tokenizer_config.json", _TOKENIZER)


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of a published checkpoint with this config.json.

    Read from the model on the meta device; there the experts of a layer are fused into two tensors, published
    checkpoints hold three matrices an expert.
    """
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    with torch.device("meta"):
        model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig.from_dict(config))
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.state_dict().items():
        for newer, published in _NEWER_NAMES.items():
            name = name.replace(newer, published)
        shape = tuple(tensor.shape)
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            for expert in range(shape[0]):
                for part in ("gate_proj", "up_proj"):
                    shapes[f"{stem}{expert}.{part}.weight"] = (shape[1] // 2, shape[2])
        elif name.endswith("experts.down_proj"):
            stem = name.removesuffix("down_proj")
            for expert in range(shape[0]):
                shapes[f"{stem}{expert}.down_proj.weight"] = shape[1:]
        else:
            shapes[name] = shape
    return shapes


_NEWER_NAMES = {
    "thinker.model.language_model.": "thinker.model.",
    "thinker.model.visual.": "thinker.visual.",
    "thinker.model.audio_tower.": "thinker.audio_tower.",
}
"""Where transformers 5.24 keeps the thinker's parts in memory, and their names in published checkpoints."""


def _random_tensor(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Float32 weights with about unit gain: N(0, 1 / fan_in) for matrices and convolutions."""
    noise = named_noise(name, shape, seed)
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("alpha", "beta"):  # of the snake activation, which takes their exponential
        values = 0.1 * noise
    elif leaf in ("scale", "gamma"):  # of residual branches
        values = 0.3 + 0.03 * noise
    elif leaf == "bias":
        values = 0.02 * noise
    elif len(shape) == 1:  # norms
        values = 1.0 + 0.1 * noise
    elif re.search(r"embed_tokens|embedding|pos_embed", name):
        values = noise
    else:
        values = noise / math.sqrt(math.prod(shape[1:]))
        if "head" in name:
            values *= HEAD_SCALE
    return values.astype(np.float32)


_VISION_PREPROCESSOR = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}

_PREPROCESSOR = {
    "processor_class": "Qwen3OmniMoeProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
    **_VISION_PREPROCESSOR,
    "min_pixels": 3136,
    "max_pixels": 262144,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 300,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "right",
    "padding_value": 0.0,
    "dither": 0.0,
    "return_attention_mask": True,
}

_VIDEO_PREPROCESSOR = {
    "processor_class": "Qwen3OmniMoeProcessor",
    "video_processor_type": "Qwen2VLVideoProcessor",
    **_VISION_PREPROCESSOR,
    "size": {"shortest_edge": 131072, "longest_edge": 786432},
    "min_frames": 4,
    "max_frames": 768,
}

_TOKENIZER = {
    "tokenizer_class": "Qwen2Tokenizer",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "bos_token": None,
    "unk_token": None,
    "model_max_length": 131072,
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}


def _generation_config() -> dict[str, Any]:
    ids = token_ids()
    return {
        "do_sample": False,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
