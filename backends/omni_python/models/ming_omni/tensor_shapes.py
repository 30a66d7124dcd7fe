"""Names and shapes of a published checkpoint's tensors, by its configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_python.models.ming_omni.architecture import AGGREGATOR_LAYERS

Shapes = dict[str, tuple[int, ...]]


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


def vision_shapes(config: Mapping[str, Any]) -> Shapes:
    """Names and shapes of the image encoder's tensors in a published checkpoint with this config.json."""
    vision, out = config["vision_config"], config["llm_config"]["hidden_size"]
    size, wide = vision["hidden_size"], vision["intermediate_size"]
    patch = (vision["in_channels"], vision["temporal_patch_size"], vision["patch_size"], vision["patch_size"])
    shapes: Shapes = {
        "vision.patch_embed.proj.weight": (size, *patch),
        "vision.patch_embed.proj.bias": (size,),
        "vision.pos_embed.weight": (vision["num_position_embeddings"], size),
    }
    for block in range(vision["depth"]):
        at = f"vision.blocks.{block}."
        for norm in ("norm1", "norm2"):
            shapes |= {f"{at}{norm}.weight": (size,), f"{at}{norm}.bias": (size,)}
        for name, shape in (
            ("attn.qkv", (3 * size, size)),
            ("attn.proj", (size, size)),
            ("mlp.linear_fc1", (wide, size)),
            ("mlp.linear_fc2", (size, wide)),
        ):
            shapes |= _linear(f"{at}{name}.", *shape)
    merged = size * vision["spatial_merge_size"] ** 2
    for at, normed in (
        ("vision.merger.", size),
        *((f"vision.deepstack_merger_list.{n}.", merged) for n in range(len(vision["deepstack_visual_indexes"]))),
    ):
        shapes |= {f"{at}norm.weight": (normed,), f"{at}norm.bias": (normed,)}
        shapes |= _linear(f"{at}linear_fc1.", merged, merged)
        shapes |= _linear(f"{at}linear_fc2.", vision["out_hidden_size"], merged)
    shapes |= _linear("linear_proj.0.", out, vision["out_hidden_size"])
    for layer in range(1, config["mlp_depth"]):
        shapes |= _linear(f"linear_proj.{2 * layer}.", out, out)
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


def _linear(at: str, outputs: int, inputs: int) -> Shapes:
    return {f"{at}weight": (outputs, inputs), f"{at}bias": (outputs,)}
