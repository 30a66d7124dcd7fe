"""A tiny Ming-Omni checkpoint with random weights, the same on every machine, in the published checkpoint's format.

It has every part that the pipelines read, one voice, and routers that they do not read yet; of the vision encoder, the
embedding of speakers and the image generation it has nothing. Constants that shape the stream are the published ones:
44.1 kHz, 882 samples a frame, 4 frames a latent, 4 latents a step with 32 before them, 10 steps of the flow. Weights
come from numpy's PCG64, one stream a tensor, seeded by the tensor's name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_python.models.loading.byte_tokenizer import BYTES, byte_tokenizer
from omni_python.models.loading.tiny import named_noise
from omni_python.models.ming_omni.architecture import AGGREGATOR_LAYERS, MODEL_TYPE
from omni_python.proto.wav import wav_file

HEAD_SCALE = 3.0
"""On what the logits are made of, so greedy choices have clear margins."""

Shapes = dict[str, tuple[int, ...]]

_SPECIAL = (
    "<|startoftext|>",
    "<|endoftext|>",
    "[CLS]",
    "[gMASK]",
    "<role>",
    "</role>",
    "<|role_end|>",
    "<image>",
    "<imagePatch>",
    "</image>",
    "<audio>",
    "<audioPatch>",
    "</audio>",
)
_TALKER_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_pad|>",
    "<|vision_end|>",
    "<audio>",
    "<audioPatch>",
    "</audio>",
)


def build(out: str | Path, seed: int = 0) -> str:
    """Write a checkpoint directory to `out` (created if missing) and return the SHA-256 of its weights."""
    from safetensors.torch import save

    out = Path(out)
    talker, llm, vae = out / "talker", out / "talker" / "llm", out / "talker" / "vae"
    digest = hashlib.sha256()
    for folder, config, shapes in (
        (out, tiny_config(), {**thinker_shapes(tiny_config()["llm_config"]), **encoder_shapes(tiny_config())}),
        (talker, tiny_talker(), talker_shapes(tiny_talker(), tiny_llm())),
        (llm, tiny_llm(), {}),
        (vae, tiny_vae(), vae_shapes(tiny_vae())),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        tensors = {name: torch.from_numpy(_random(name, shape, seed)) for name, shape in sorted(shapes.items())}
        if tensors:
            (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        for name, tensor in tensors.items():
            digest.update(f"{name}|{list(tensor.shape)}|".encode() + tensor.numpy().tobytes())
    _voice(talker)
    byte_tokenizer(_SPECIAL).save(str(out / "tokenizer.json"))
    byte_tokenizer(_TALKER_SPECIAL).save(str(llm / "tokenizer.json"))
    return digest.hexdigest()


def _voice(talker: Path) -> None:
    """One voice: half a second of a falling tone."""
    (talker / "data").mkdir(exist_ok=True)
    times = np.arange(22050) / 44100
    tone = 0.3 * np.sin(2 * np.pi * (300 - 150 * times) * times)
    (talker / "data" / "voice.wav").write_bytes(wav_file(tone.astype(np.float32), 44100))
    told = {"DB30": {"prompt_text": "A tone that falls.", "prompt_wav_path": "data/voice.wav"}}
    (talker / "data" / "voice_name.json").write_text(json.dumps(told, indent=2) + "\n", "utf-8")


def tiny_config() -> dict[str, Any]:
    """The config.json: the published one's fields, but for those of the encoders."""
    return {
        "architectures": ["BailingMM2NativeForConditionalGeneration"],
        "model_type": MODEL_TYPE,
        "mlp_depth": 2,
        "audio_config": {
            "ds_kernel_size": 3,
            "ds_stride": 2,
            "norm_query_embeds": True,
            "whisper_encoder_config": {"n_ctx": 1500, "n_head": 4, "n_layer": 2, "n_mels": 128, "n_state": 64},
        },
        "llm_config": {
            "eos_token_id": BYTES + _SPECIAL.index("<|role_end|>"),
            "first_k_dense_replace": 1,
            "head_dim": 16,
            "hidden_act": "silu",
            "hidden_size": 64,
            "intermediate_size": 96,
            "max_position_embeddings": 4096,
            "model_type": "bailing_moe_v2",
            "moe_intermediate_size": 32,
            "n_group": 4,
            "num_attention_heads": 4,
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "num_shared_experts": 1,
            "pad_token_id": BYTES + _SPECIAL.index("<|endoftext|>"),
            "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {"type": "video_rope", "factor": None},
            "rope_theta": 2400000.0,
            "routed_scaling_factor": 2.5,
            "router_type": "MultiRouter",
            "tie_word_embeddings": False,
            "topk_group": 2,
            "use_bias": False,
            "use_expert_bias": True,
            "use_qk_norm": True,
            "use_qkv_bias": False,
            "vocab_size": BYTES + len(_SPECIAL),
        },
    }


def tiny_talker() -> dict[str, Any]:
    """The config.json of the folder talker."""
    blocks = {"depth": 2, "hidden_size": 64, "in_channels": 64, "mlp_ratio": 2.0, "num_heads": 4}
    return {
        "steps": 10,
        "patch_size": 4,
        "history_patch_size": 32,
        "cfg_strength": 2.0,
        "flowmodel": {**blocks, "dropout": 0.0, "qk_norm": "rms_norm"},
        "aggregator": {**blocks, "dropout": 0.1},
    }


def tiny_llm() -> dict[str, Any]:
    """The config.json of the folder talker/llm."""
    return {
        **_qwen2(64, 2, 96),
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "vocab_size": BYTES + len(_TALKER_SPECIAL),
    }


def tiny_vae() -> dict[str, Any]:
    """The config.json of the folder talker/vae."""
    windowed = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0, "vocab_size": 1}
    backbone = {**_qwen2(64, 2, 96), **windowed}
    return {
        "sample_rate": 44100,
        "patch_size": 4,
        "enc_kwargs": {"backbone": backbone, "hop_size": 882, "input_dim": 882, "latent_dim": 64},
        "dec_kwargs": {"backbone": backbone, "latent_dim": 64, "output_dim": 882},
    }


def thinker_shapes(llm: Mapping[str, Any]) -> Shapes:
    """Names and shapes of the thinker's tensors in a published checkpoint with this llm_config."""
    hidden, dim, vocab = llm["hidden_size"], llm["head_dim"], llm["vocab_size"]
    heads, kv_heads = llm["num_attention_heads"], llm["num_key_value_heads"]
    shapes: Shapes = {
        "model.model.word_embeddings.weight": (vocab, hidden),
        "model.model.norm.weight": (hidden,),
        "model.lm_head.weight": (vocab, hidden),
    }
    for layer in range(llm["num_hidden_layers"]):
        at = f"model.model.layers.{layer}."
        shapes |= {
            f"{at}input_layernorm.weight": (hidden,),
            f"{at}post_attention_layernorm.weight": (hidden,),
            f"{at}attention.query_key_value.weight": ((heads + 2 * kv_heads) * dim, hidden),
            f"{at}attention.dense.weight": (hidden, heads * dim),
            f"{at}attention.query_layernorm.weight": (dim,),
            f"{at}attention.key_layernorm.weight": (dim,),
        }
        if layer < llm["first_k_dense_replace"]:
            shapes |= _gated(f"{at}mlp.", hidden, llm["intermediate_size"])
            continue
        for gate in ("gate", "image_gate", "audio_gate"):
            shapes[f"{at}mlp.{gate}.weight"] = (llm["num_experts"], hidden)
            shapes[f"{at}mlp.{gate}.expert_bias"] = (llm["num_experts"],)
        wide = llm["moe_intermediate_size"]
        for expert in range(llm["num_experts"]):
            shapes |= _gated(f"{at}mlp.experts.{expert}.", hidden, wide)
        shapes |= _gated(f"{at}mlp.shared_experts.", hidden, wide * llm["num_shared_experts"])
    return shapes


def encoder_shapes(config: Mapping[str, Any]) -> Shapes:
    """Names and shapes of the audio encoder's tensors in a published checkpoint with this config.json."""
    audio, out = config["audio_config"], config["llm_config"]["hidden_size"]
    whisper = audio["whisper_encoder_config"]
    size = whisper["n_state"]
    shapes: Shapes = {
        "audio.conv1.weight": (size, whisper["n_mels"], 3),
        "audio.conv1.bias": (size,),
        "audio.conv2.weight": (size, size, 3),
        "audio.conv2.bias": (size,),
        "audio.positional_embedding": (whisper["n_ctx"], size),
        "audio.ln_post.weight": (size,),
        "audio.ln_post.bias": (size,),
        "linear_proj_audio.0.weight": (out, size, audio["ds_kernel_size"]),
        "linear_proj_audio.0.bias": (out,),
    }
    for layer in range(1, config["mlp_depth"]):
        at = f"linear_proj_audio.{2 * layer + 1}."
        shapes |= {f"{at}weight": (out, out), f"{at}bias": (out,)}
    for block in range(whisper["n_layer"]):
        at = f"audio.blocks.{block}."
        for name in ("query", "key", "value", "out"):
            shapes[f"{at}attn.{name}.weight"] = (size, size)
            if name != "key":
                shapes[f"{at}attn.{name}.bias"] = (size,)
        for norm in ("attn_ln", "mlp_ln"):
            shapes |= {f"{at}{norm}.weight": (size,), f"{at}{norm}.bias": (size,)}
        shapes |= {f"{at}mlp.0.weight": (4 * size, size), f"{at}mlp.0.bias": (4 * size,)}
        shapes |= {f"{at}mlp.2.weight": (size, 4 * size), f"{at}mlp.2.bias": (size,)}
    return shapes


def talker_shapes(config: Mapping[str, Any], llm: Mapping[str, Any]) -> Shapes:
    """Names and shapes of the tensors in the folder talker."""
    hidden = llm["hidden_size"]
    flow, aggregator = config["flowmodel"], config["aggregator"]
    size = flow["hidden_size"]
    return {
        **_qwen2_shapes("model.", llm),
        **_flow_shapes("cfm.model.", flow, flow["in_channels"]),
        "cfm.model.t_embedder.time_mlp.0.weight": (size, 256),
        "cfm.model.t_embedder.time_mlp.0.bias": (size,),
        "cfm.model.t_embedder.time_mlp.2.weight": (size, size),
        "cfm.model.t_embedder.time_mlp.2.bias": (size,),
        "cfm.model.c_embedder.cond_embedder.weight": (size, hidden),
        "cfm.model.c_embedder.cond_embedder.bias": (size,),
        **_flow_shapes("aggregator.", aggregator, hidden),
        "aggregator.word_embedder.weight": (1, aggregator["hidden_size"]),
        "stop_head.weight": (2, hidden),
        "stop_head.bias": (2,),
        "spk_head.weight": (hidden, config.get("spk_dim", 192)),
        "spk_head.bias": (hidden,),
    }


def vae_shapes(config: Mapping[str, Any]) -> Shapes:
    """Names and shapes of the tensors in the folder talker/vae."""
    encoder, decoder = config["enc_kwargs"], config["dec_kwargs"]
    inner, outer = encoder["backbone"]["hidden_size"], decoder["backbone"]["hidden_size"]
    shapes: Shapes = {
        **_qwen2_shapes("encoder.encoder.", encoder["backbone"]),
        "encoder.fc1.weight": (inner, encoder["input_dim"]),
        "encoder.fc2.weight": (inner, inner),
        "encoder.fc2.bias": (inner,),
        "encoder.fc3.weight": (2 * encoder["latent_dim"], inner),
        "encoder.fc3.bias": (2 * encoder["latent_dim"],),
        "encoder.norm.weight": (inner,),
        "encoder.norm.bias": (inner,),
        **_qwen2_shapes("decoder.decoder.", decoder["backbone"]),
        "decoder.fc1.weight": (outer, decoder["latent_dim"]),
        "decoder.fc1.bias": (outer,),
        "decoder.head.out.weight": (4 * decoder["output_dim"] + 2, outer),
        "decoder.head.out.bias": (4 * decoder["output_dim"] + 2,),
        "decoder.head.istft.window": (4 * decoder["output_dim"],),
    }
    aggregator = {**encoder["backbone"], "num_hidden_layers": AGGREGATOR_LAYERS}
    return shapes | _qwen2_shapes("encoder.aggregator.", aggregator) | {"encoder.cls_embed": (1, 1, inner)}


def _qwen2(hidden: int, layers: int, wide: int) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "model_type": "qwen2",
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
    }


def _qwen2_shapes(prefix: str, config: Mapping[str, Any]) -> Shapes:
    """Of a Qwen2Model."""
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    dim = hidden // heads
    shapes: Shapes = {
        f"{prefix}embed_tokens.weight": (config["vocab_size"], hidden),
        f"{prefix}norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"{prefix}layers.{layer}."
        shapes |= {f"{at}{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        for name, outputs in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (outputs * dim, hidden)
            shapes[f"{at}self_attn.{name}_proj.bias"] = (outputs * dim,)
        shapes[f"{at}self_attn.o_proj.weight"] = (hidden, heads * dim)
        shapes |= _gated(f"{at}mlp.", hidden, config["intermediate_size"])
    return shapes


def _flow_shapes(prefix: str, config: Mapping[str, Any], outputs: int) -> Shapes:
    """Of what both transformers over latents have."""
    size = config["hidden_size"]
    dim, wide = size // config["num_heads"], int(size * config["mlp_ratio"])
    shapes: Shapes = {
        f"{prefix}x_embedder.weight": (size, config["in_channels"]),
        f"{prefix}x_embedder.bias": (size,),
        f"{prefix}rotary_embed.inv_freq": (dim // 2,),
        f"{prefix}final_layer.norm_final.weight": (size,),
        f"{prefix}final_layer.linear.weight": (outputs, size),
        f"{prefix}final_layer.linear.bias": (outputs,),
    }
    for block in range(config["depth"]):
        at = f"{prefix}blocks.{block}."
        shapes |= {f"{at}norm1.weight": (size,), f"{at}norm2.weight": (size,)}
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            shapes |= {f"{at}attn.{name}.weight": (size, size), f"{at}attn.{name}.bias": (size,)}
        if config.get("qk_norm"):
            shapes |= {f"{at}attn.{name}_norm.weight": (dim,) for name in "qk"}
        shapes |= {f"{at}mlp.ff.0.0.weight": (wide, size), f"{at}mlp.ff.0.0.bias": (wide,)}
        shapes |= {f"{at}mlp.ff.2.weight": (size, wide), f"{at}mlp.ff.2.bias": (size,)}
    return shapes


def _gated(at: str, hidden: int, wide: int) -> Shapes:
    return {
        f"{at}gate_proj.weight": (wide, hidden),
        f"{at}up_proj.weight": (wide, hidden),
        f"{at}down_proj.weight": (hidden, wide),
    }


def _random(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Float32 weights with about unit gain; of buffers, what the published model computes."""
    if name.endswith("istft.window"):
        return np.sin(np.pi * np.arange(shape[0]) / shape[0]).astype(np.float32) ** 2
    if name.endswith("inv_freq"):
        return (10000.0 ** -(np.arange(shape[0]) / shape[0])).astype(np.float32)
    noise = named_noise(name, shape, seed)
    if name.endswith("bias"):
        values = 0.1 * noise
    elif len(shape) == 1:  # norms
        values = 1.0 + 0.1 * noise
    elif "embed" in name and "embedder" not in name:
        values = noise
    else:
        values = noise / math.sqrt(math.prod(shape[1:]))
        if "lm_head" in name or "stop_head" in name:
            values *= HEAD_SCALE
    return values.astype(np.float32)
