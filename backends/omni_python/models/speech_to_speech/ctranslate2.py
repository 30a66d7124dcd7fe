"""CTranslate2's files of Whisper to Hugging Face's format."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from omni_python.models.loading.checkpoint import CheckpointError

_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
"""By CTranslate2's number of a type (`DataType` in its include/ctranslate2/types.h)."""
_VERSION, _SPECIFICATION = 6, "WhisperSpec"

_OUTER = {
    "encoder/conv1/weight": "encoder.conv1.weight",
    "encoder/conv1/bias": "encoder.conv1.bias",
    "encoder/conv2/weight": "encoder.conv2.weight",
    "encoder/conv2/bias": "encoder.conv2.bias",
    "encoder/position_encodings/encodings": "encoder.embed_positions.weight",
    "encoder/layer_norm/gamma": "encoder.layer_norm.weight",
    "encoder/layer_norm/beta": "encoder.layer_norm.bias",
    "decoder/embeddings/weight": "decoder.embed_tokens.weight",
    "decoder/position_encodings/encodings": "decoder.embed_positions.weight",
    "decoder/layer_norm/gamma": "decoder.layer_norm.weight",
    "decoder/layer_norm/beta": "decoder.layer_norm.bias",
}
_INNER = {
    "self_attention/layer_norm/gamma": ("self_attn_layer_norm.weight",),
    "self_attention/layer_norm/beta": ("self_attn_layer_norm.bias",),
    "self_attention/linear_0/weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "self_attention/linear_0/bias": ("self_attn.q_proj.bias", "", "self_attn.v_proj.bias"),
    "self_attention/linear_1/weight": ("self_attn.out_proj.weight",),
    "self_attention/linear_1/bias": ("self_attn.out_proj.bias",),
    "attention/layer_norm/gamma": ("encoder_attn_layer_norm.weight",),
    "attention/layer_norm/beta": ("encoder_attn_layer_norm.bias",),
    "attention/linear_0/weight": ("encoder_attn.q_proj.weight",),
    "attention/linear_0/bias": ("encoder_attn.q_proj.bias",),
    "attention/linear_1/weight": ("encoder_attn.k_proj.weight", "encoder_attn.v_proj.weight"),
    "attention/linear_1/bias": ("", "encoder_attn.v_proj.bias"),
    "attention/linear_2/weight": ("encoder_attn.out_proj.weight",),
    "attention/linear_2/bias": ("encoder_attn.out_proj.bias",),
    "ffn/layer_norm/gamma": ("final_layer_norm.weight",),
    "ffn/layer_norm/beta": ("final_layer_norm.bias",),
    "ffn/linear_0/weight": ("fc1.weight",),
    "ffn/linear_0/bias": ("fc1.bias",),
    "ffn/linear_1/weight": ("fc2.weight",),
    "ffn/linear_1/bias": ("fc2.bias",),
}
"""CTranslate2 lays projections of the same input upon each other; keys have no bias, for which it holds zeros."""


def convert_whisper(model: bytes, config: dict[str, Any], out: Path) -> None:
    """Write `out`/config.json and model.safetensors (float16 stays so) of a `model.bin` and its `config`.

    Raises `CheckpointError` where the file is of another kind.
    """
    given = dict(read_variables(model))
    tensors = {f"model.{name}": tensor for name, tensor in _renamed(given)}
    sizes = _sizes(given, tensors)
    suppressed = {"suppress_tokens": config["suppress_ids"], "begin_suppress_tokens": config["suppress_ids_begin"]}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps({"model_type": "whisper", **sizes, **suppressed}, indent=1) + "\n")


def read_variables(model: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a CTranslate2 `model.bin` by their names. Raises `CheckpointError`."""
    reader = _Reader(model)
    version, name = reader.number("I"), reader.text()
    if (version, name) != (_VERSION, _SPECIFICATION):
        raise CheckpointError(
            f"model.bin is a {name!r} of version {version}; wanted is a {_SPECIFICATION!r} of version {_VERSION}"
        )
    reader.number("I")  # the specification's revision
    for _ in range(reader.number("I")):
        variable = reader.text()
        shape = [reader.number("I") for _ in range(reader.number("B"))]
        dtype = np.dtype(_TYPES[reader.number("B")])
        yield variable, np.frombuffer(reader.bytes(reader.number("I")), dtype).reshape(shape)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def bytes(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) < size:
            raise CheckpointError("model.bin is cut off")
        self._at += size
        return piece

    def number(self, kind: str) -> int:
        (value,) = struct.unpack("<" + kind, self.bytes(struct.calcsize("<" + kind)))
        return int(value)

    def text(self) -> str:
        return self.bytes(self.number("H")).rstrip(b"\0").decode()


def _renamed(given: dict[str, np.ndarray]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, array in given.items():
        if name in _OUTER:
            yield _OUTER[name], torch.from_numpy(array.copy())
            continue
        side, layer, *rest = name.split("/")
        parts = _INNER.get("/".join(rest), ())
        for part, piece in zip(parts, np.split(array, len(parts)) if parts else (), strict=True):
            if part:
                yield f"{side}.layers.{layer.removeprefix('layer_')}.{part}", torch.from_numpy(piece.copy())


def _sizes(given: dict[str, np.ndarray], tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    """The fields of config.json that tell the network's sizes."""
    width, mel_bins, _ = given["encoder/conv1/weight"].shape
    sizes = {"d_model": width, "num_mel_bins": mel_bins, "vocab_size": len(given["decoder/embeddings/weight"])}
    for side, positions in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        layers = {name.split("/")[1] for name in given if name.startswith(f"{side}/layer_") and name.count("/") > 2}
        sizes[f"{side}_layers"] = len(layers)
        sizes[f"{side}_attention_heads"] = int(given[f"{side}/num_heads"])
        sizes[f"{side}_ffn_dim"] = len(tensors[f"model.{side}.layers.0.fc1.weight"])
        sizes[positions] = len(given[f"{side}/position_encodings/encodings"])
    return sizes
