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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_python.models.loading.checkpoint import checkpoint_hash
from omni_python.models.loading.tiny import named_noise

ASSETS = Path(__file__).parent / "assets"
HEAD_SCALE = 4.0
"""Makes the logits of every head that much sharper than unit variance, so greedy choices have clear margins."""
END_OF_TURN_SCALE = 2.0
END_OF_SPEECH_SCALE = 1.3
"""On top of it for the rows of `<|im_end|>` and of the codec's end, so random answers end by themselves at times."""
WAVE_SCALE = 0.003
"""On the last convolution: keeps the waveform inside -1..1, for clipping hides differences."""
DEFAULT_HASH = "0fcd61a8bd917d7034f2851a4311a33c54146c35e988edb28dbfbc9fbc5c09b0"
"""`checkpoint_hash` of the checkpoint with the default dimensions and seed."""


@dataclass(frozen=True)
class Dimensions:
    """What may differ between two tiny checkpoints; the defaults are what the tests' fixtures were made with.

    The talker's vocabulary is `codebook_size` + 1024, for generation suppresses the last 1024 ids but the
    end of speech.
    The code2wav window is small so that a left context of 25 frames covers its whole receptive field.
    """

    thinker_layers: int = 4
    talker_layers: int = 3
    code_predictor_layers: int = 2
    code2wav_layers: int = 2
    audio_layers: int = 2
    vision_layers: int = 3
    deepstack_layers: tuple[int, ...] = (0, 1)
    thinker_hidden: int = 64
    talker_hidden: int = 48
    experts: int = 4
    experts_per_token: int = 2
    code_groups: int = 4
    codebook_size: int = 64
    code2wav_window: int = 8
    accept_layer: int = 2


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


def tiny_config(size: Dimensions) -> dict[str, Any]:
    """The config.json of a tiny checkpoint: the published one's fields, the token ids of the tokenizer asset."""
    return with_token_ids(
        {
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
            "model_type": "qwen3_omni_moe",
            "dtype": "float32",
            "enable_audio_output": True,
            "thinker_config": _thinker_config(size),
            "talker_config": _talker_config(size),
            "code2wav_config": _code2wav_config(size),
        }
    )


def with_token_ids(config: dict[str, Any]) -> dict[str, Any]:
    """The config.json with the tokenizer asset's ids, and the thinker's vocabulary just as large as that needs."""
    ids = _token_ids()
    media = {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    thinker = config["thinker_config"]
    vocabulary = {"vocab_size": math.ceil((max(ids.values()) + 1) / 64) * 64}
    return {
        **config,
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "system_token_id": ids["system"],
        "user_token_id": ids["user"],
        "assistant_token_id": ids["assistant"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "thinker_config": {
            **thinker,
            **media,
            "user_token_id": ids["user"],
            "text_config": {**thinker["text_config"], **vocabulary},
        },
        "talker_config": {**config["talker_config"], **media},
    }


def _thinker_config(size: Dimensions) -> dict[str, Any]:
    return {
        "model_type": "qwen3_omni_moe_thinker",
        "dtype": "float32",
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "audio_config": {
            "model_type": "qwen3_omni_moe_audio_encoder",
            "d_model": 32,
            "encoder_layers": size.audio_layers,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "num_mel_bins": 128,
            "max_source_positions": 1500,
            "n_window": 50,
            "n_window_infer": 800,
            "conv_chunksize": 500,
            "downsample_hidden_size": 8,
            "output_dim": size.thinker_hidden,
        },
        "vision_config": {
            "model_type": "qwen3_omni_moe_vision_encoder",
            "depth": size.vision_layers,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "num_position_embeddings": 2304,
            "out_hidden_size": size.thinker_hidden,
            "deepstack_visual_indexes": list(size.deepstack_layers),
        },
        "text_config": {
            "model_type": "qwen3_omni_moe_text",
            "hidden_size": size.thinker_hidden,
            "intermediate_size": 128,
            "num_hidden_layers": size.thinker_layers,
            "moe_intermediate_size": 32,
            "rope_parameters": _MROPE,
            **_moe(size),
        },
    }


def _talker_config(size: Dimensions) -> dict[str, Any]:
    codes = size.codebook_size
    return {
        "model_type": "qwen3_omni_moe_talker",
        "dtype": "float32",
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "thinker_hidden_size": size.thinker_hidden,
        "accept_hidden_layer": size.accept_layer,
        "num_code_groups": size.code_groups,
        "spatial_merge_size": 2,
        "codec_pad_id": codes + 100,
        "codec_bos_id": codes + 101,
        "codec_eos_token_id": codes + 102,
        "codec_nothink_id": codes + 107,
        "codec_think_bos_id": codes + 108,
        "codec_think_eos_id": codes + 109,
        "speaker_id": {"chelsie": codes + 253, "ethan": codes + 254, "aiden": codes + 255},
        "text_config": {
            "model_type": "qwen3_omni_moe_talker_text",
            "vocab_size": codes + 1024,
            "hidden_size": size.talker_hidden,
            "intermediate_size": 96,
            "num_hidden_layers": size.talker_layers,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 48,
            "rope_parameters": _MROPE,
            **_moe(size),
        },
        "code_predictor_config": {
            "model_type": "qwen3_omni_moe_talker_code_predictor",
            "vocab_size": codes,
            "hidden_size": size.talker_hidden,
            "intermediate_size": 96,
            "num_hidden_layers": size.code_predictor_layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "layer_types": ["full_attention"] * size.code_predictor_layers,
            "num_code_groups": size.code_groups,
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
        },
    }


def _code2wav_config(size: Dimensions) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": size.code2wav_layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "layer_scale_initial_scale": 0.3,
        "sliding_window": size.code2wav_window,
        "max_position_embeddings": 8000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000},
        "codebook_size": size.codebook_size,
        "num_quantizers": size.code_groups,
        "decoder_dim": 32,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
    }


def _moe(size: Dimensions) -> dict[str, Any]:
    """What the decoders of thinker and talker have in common."""
    return {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "num_experts": size.experts,
        "num_experts_per_tok": size.experts_per_token,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": 65536,
        "tie_word_embeddings": False,
    }


_MROPE = {
    "rope_type": "default",
    "rope_theta": 1000000,
    "mrope_section": [4, 2, 2],
    "interleaved": True,
    "mrope_interleaved": True,
}

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
    ids = _token_ids()
    return {
        "do_sample": False,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
    }


def _token_ids() -> dict[str, int]:
    """Every token of the tokenizer asset with its id."""
    tokenizer = json.loads((ASSETS / "tokenizer.json").read_text("utf-8"))
    return {**tokenizer["model"]["vocab"], **{token["content"]: token["id"] for token in tokenizer["added_tokens"]}}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
