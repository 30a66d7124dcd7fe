"""Reading codec.pth: the sizes that its tensors tell, and its encoder or its decoder."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from omni_python.layers.frame_transformer import FrameTransformerConfig
from omni_python.models.fish_s2_pro.codec import CodecDecoder, CodecEncoder, CodecSizes
from omni_python.models.fish_s2_pro.weights import renamed
from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.modules import assign, on_meta

FILE = "codec.pth"
HEAD_DIM, ROPE_THETA, NORM_EPS = 64, 10000.0, 1e-5
ENCODER_WINDOW, MODULE_WINDOW = 512, 128
"""Of the transformers, as in fish-speech's modded_dac_vq.yaml and modded_dac.py: no tensor tells them."""

_BUFFERS = ("freqs_cis", "causal_mask")
_V, _G = ".parametrizations.weight.original1", ".parametrizations.weight.original0"
M = TypeVar("M", bound=nn.Module)

PUBLISHED = CodecSizes(
    encoder_dim=64,
    encoder_rates=(2, 4, 8, 8),
    encoder_transformers=(
        None,
        None,
        None,
        FrameTransformerConfig(1024, 4, 16, 16, HEAD_DIM, 3072, ENCODER_WINDOW, ROPE_THETA, NORM_EPS),
    ),
    latent=1024,
    factors=(2, 2),
    module=FrameTransformerConfig(1024, 8, 16, 16, HEAD_DIM, 3072, MODULE_WINDOW, ROPE_THETA, NORM_EPS),
    codebooks=(4096, *[1024] * 9),
    codebook_dim=8,
    decoder_dim=1536,
    decoder_rates=(8, 8, 4, 2),
)
"""The published codec's sizes."""


def read_codec(directory: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of codec.pth by their names, weight norm computed, in float32. Raises `CheckpointError`."""
    path = Path(directory) / FILE
    try:
        stored = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {str(directory)!r} has no {FILE}") from None
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    stored = stored.get("state_dict", stored)
    generator = {name.removeprefix("generator."): t for name, t in stored.items() if name.startswith("generator.")}
    return without_weight_norm({name: t for name, t in (generator or stored).items() if not name.endswith(_BUFFERS)})


def without_weight_norm(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each pair of a direction and a length as one weight, in both forms that torch has stored them in."""
    made = {}
    for name, tensor in stored.items():
        for direction, length in ((_V, _G), (".weight_v", ".weight_g")):
            if name.endswith(length):
                break
            if name.endswith(direction):
                stem = name.removesuffix(direction)
                made[f"{stem}.weight"] = torch._weight_norm(tensor.float(), stored[stem + length].float(), 0)
                break
        else:
            made[name] = tensor.float()
    return made


def codec_sizes(tensors: dict[str, torch.Tensor]) -> CodecSizes:
    """Raises `CheckpointError` where the tensors are no codec's."""
    try:
        return _sizes(tensors)
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{FILE}: the tensors are not those of S2-Pro's codec: {error}") from None


def load_encoder(path: str | Path, device: str) -> CodecEncoder:
    """The half that makes codes of samples, in float32: in fewer bits other codes would be the nearest."""
    tensors = read_codec(path)
    sizes = codec_sizes(tensors)
    with on_meta():
        encoder = CodecEncoder(sizes)
    return assign(encoder, _of(encoder, tensors, torch.float32, device), "codec's encoder")


def load_decoder(path: str | Path, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto") -> CodecDecoder:
    """The half that makes samples of codes; of random weights in the published sizes where `load_format` says so."""
    tensors = {} if is_dummy(load_format) else read_codec(path)
    with on_meta():
        decoder = CodecDecoder(codec_sizes(tensors) if tensors else PUBLISHED)
    if not tensors:
        return draw_weights(decoder, dtype, device)
    return assign(decoder, _of(decoder, tensors, dtype, device), "codec's decoder")


def _of(
    module: nn.Module, tensors: dict[str, torch.Tensor], dtype: torch.dtype, device: str
) -> dict[str, torch.Tensor]:
    """Those of the tensors that `module` has."""
    wanted = module.state_dict().keys()
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        heads = tensor.shape[-1] // HEAD_DIM  # every transformer's width is that of its heads
        new = renamed(name, tensor, heads, heads, HEAD_DIM)
        found |= {key: value.to(device, dtype, copy=True) for key, value in new.items() if key in wanted}
    return found


def _sizes(tensors: dict[str, torch.Tensor]) -> CodecSizes:
    def shape(name: str) -> torch.Size:
        return tensors[name].shape

    encoder_blocks = range(1, _count(tensors, "encoder.block.") - 2)
    decoder_blocks = range(1, _count(tensors, "decoder.model.") - 2)
    factors = range(_count(tensors, "quantizer.downsample."))
    residual = range(_count(tensors, "quantizer.quantizer.quantizers."))
    quantizers = [
        "quantizer.semantic_quantizer.quantizers.0",
        *(f"quantizer.quantizer.quantizers.{index}" for index in residual),
    ]
    module = _transformer(tensors, "quantizer.post_module.", MODULE_WINDOW)
    if module is None:
        raise ValueError("quantizer.post_module has no layers")
    return CodecSizes(
        encoder_dim=shape("encoder.block.0.conv.weight")[0],
        encoder_rates=tuple(shape(f"encoder.block.{n}.block.4.conv.weight")[-1] // 2 for n in encoder_blocks),
        encoder_transformers=tuple(
            _transformer(tensors, f"encoder.block.{n}.block.5.", ENCODER_WINDOW) for n in encoder_blocks
        ),
        latent=shape("decoder.model.0.conv.weight")[1],
        factors=tuple(shape(f"quantizer.downsample.{n}.0.conv.weight")[-1] for n in factors),
        module=module,
        codebooks=tuple(shape(f"{quantizer}.codebook.weight")[0] for quantizer in quantizers),
        codebook_dim=shape(f"{quantizers[0]}.codebook.weight")[1],
        decoder_dim=shape("decoder.model.0.conv.weight")[0],
        decoder_rates=tuple(shape(f"decoder.model.{n}.block.1.conv.weight")[-1] // 2 for n in decoder_blocks),
    )


def _transformer(tensors: dict[str, torch.Tensor], prefix: str, window: int) -> FrameTransformerConfig | None:
    if f"{prefix}norm.weight" not in tensors:
        return None
    width = len(tensors[f"{prefix}norm.weight"])
    heads = width // HEAD_DIM
    wide = len(tensors[f"{prefix}layers.0.feed_forward.w1.weight"])
    layers = _count(tensors, f"{prefix}layers.")
    return FrameTransformerConfig(width, layers, heads, heads, HEAD_DIM, wide, window, ROPE_THETA, NORM_EPS)


def _count(tensors: dict[str, torch.Tensor], prefix: str) -> int:
    """How many parts are numbered below `prefix`."""
    return max(int(name.removeprefix(prefix).partition(".")[0]) for name in tensors if name.startswith(prefix)) + 1
