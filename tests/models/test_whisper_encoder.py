"""Whisper's encoder with weights of either publisher's names gives what transformers' gives."""

from __future__ import annotations

import torch
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder as Plain

from omni_python.models.media.whisper_encoder import EncoderSizes, WhisperEncoder, from_openai

SIZES = EncoderSizes(mel_bins=20, width=24, heads=3, inner=40, layers=2, positions=60)


def openai_names() -> dict[str, str]:
    """By the names of Hugging Face, those of OpenAI's `AudioEncoder`, written out."""
    names = {"embed_positions.weight": "positional_embedding"}
    for kind in ("weight", "bias"):
        names |= {f"{layer}.{kind}": f"{layer}.{kind}" for layer in ("conv1", "conv2")}
        names[f"layer_norm.{kind}"] = f"ln_post.{kind}"
        for number in range(SIZES.layers):
            ours, theirs = f"layers.{number}", f"blocks.{number}"
            names |= {
                f"{ours}.self_attn.q_proj.{kind}": f"{theirs}.attn.query.{kind}",
                f"{ours}.self_attn.k_proj.{kind}": f"{theirs}.attn.key.{kind}",
                f"{ours}.self_attn.v_proj.{kind}": f"{theirs}.attn.value.{kind}",
                f"{ours}.self_attn.out_proj.{kind}": f"{theirs}.attn.out.{kind}",
                f"{ours}.self_attn_layer_norm.{kind}": f"{theirs}.attn_ln.{kind}",
                f"{ours}.fc1.{kind}": f"{theirs}.mlp.0.{kind}",
                f"{ours}.fc2.{kind}": f"{theirs}.mlp.2.{kind}",
                f"{ours}.final_layer_norm.{kind}": f"{theirs}.mlp_ln.{kind}",
            }
    return names


@torch.inference_mode()
def test_it_is_transformers() -> None:
    config = WhisperConfig(
        num_mel_bins=SIZES.mel_bins,
        d_model=SIZES.width,
        encoder_layers=SIZES.layers,
        encoder_attention_heads=SIZES.heads,
        encoder_ffn_dim=SIZES.inner,
        max_source_positions=SIZES.positions,
    )
    plain = Plain(config).eval()
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    stored = {openai_names()[name]: tensor for name, tensor in plain.state_dict().items()}
    ours = WhisperEncoder(SIZES)
    ours.load_state_dict({from_openai(name): tensor for name, tensor in stored.items()}, strict=True)
    mel = torch.randn(SIZES.mel_bins, 2 * SIZES.positions)
    torch.testing.assert_close(ours(mel), plain(mel[None]).last_hidden_state[0], atol=1e-4, rtol=1e-4)
    ours.load_state_dict({from_openai(name): tensor for name, tensor in plain.state_dict().items()}, strict=True)
    assert ours(mel[:, :31]).shape == (16, SIZES.width), "an odd number of frames ends with half a vector's"
