"""A CTranslate2 file, written here as its format is described, becomes the checkpoint that it was made of."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from omni_python.models.loading.checkpoint import CheckpointError, load_config, read_tensors
from omni_python.models.speech_to_speech.ctranslate2 import convert_whisper
from tests.models.speech_to_speech.test_recogniser import save_tiny

CONFIG = {"suppress_ids": [3], "suppress_ids_begin": [0, 26]}


def packed(tensors: dict[str, torch.Tensor], layers: dict[str, int], heads: dict[str, int]) -> bytes:
    """CTranslate2's variables of a Whisper in Hugging Face's names (without "model.")."""
    variables: dict[str, np.ndarray] = {}

    def put(name: str, *parts: str) -> None:
        arrays = [tensors[part].numpy() if part in tensors else np.zeros(32, np.float32) for part in parts]
        variables[name] = np.concatenate(arrays).astype(np.float16)

    for name in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            put(f"encoder/{name}/{kind}", f"encoder.{name}.{kind}")
    put("decoder/embeddings/weight", "decoder.embed_tokens.weight")
    for side in ("encoder", "decoder"):
        put(f"{side}/position_encodings/encodings", f"{side}.embed_positions.weight")
        for ours, theirs in (("gamma", "weight"), ("beta", "bias")):
            put(f"{side}/layer_norm/{ours}", f"{side}.layer_norm.{theirs}")
        variables[f"{side}/num_heads"] = np.array(heads[side], np.int16)
        for n in range(layers[side]):
            layer, stored = f"{side}.layers.{n}", f"{side}/layer_{n}"
            norms = {"self_attention": "self_attn_layer_norm", "ffn": "final_layer_norm"}
            if side == "decoder":
                norms["attention"] = "encoder_attn_layer_norm"
            for block, norm in norms.items():
                for ours, theirs in (("gamma", "weight"), ("beta", "bias")):
                    put(f"{stored}/{block}/layer_norm/{ours}", f"{layer}.{norm}.{theirs}")
            for kind in ("weight", "bias"):
                own = [f"{layer}.self_attn.{part}_proj.{kind}" for part in ("q", "k", "v", "out")]
                put(f"{stored}/self_attention/linear_0/{kind}", *own[:3])
                put(f"{stored}/self_attention/linear_1/{kind}", own[3])
                put(f"{stored}/ffn/linear_0/{kind}", f"{layer}.fc1.{kind}")
                put(f"{stored}/ffn/linear_1/{kind}", f"{layer}.fc2.{kind}")
                if side == "decoder":
                    q, k, v, out = (f"{layer}.encoder_attn.{part}_proj.{kind}" for part in ("q", "k", "v", "out"))
                    put(f"{stored}/attention/linear_0/{kind}", q)
                    put(f"{stored}/attention/linear_1/{kind}", k, v)
                    put(f"{stored}/attention/linear_2/{kind}", out)
    return written("WhisperSpec", variables)


def written(name: str, variables: dict[str, np.ndarray]) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    types = {np.dtype(np.float16): 4, np.dtype(np.int16): 2}
    file = struct.pack("<I", 6) + text(name) + struct.pack("<II", 3, len(variables))
    for variable, array in variables.items():
        data = array.tobytes()
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        file += text(variable) + shape + struct.pack("<BI", types[array.dtype], len(data)) + data
    return file + struct.pack("<I", 0)


def test_round_trip(tmp_path: Path) -> None:
    save_tiny(tmp_path / "hf", seed=5)
    original = read_tensors(tmp_path / "hf", "model.")
    file = packed(original, {"encoder": 2, "decoder": 3}, {"encoder": 4, "decoder": 2})
    convert_whisper(file, CONFIG, tmp_path / "converted")
    converted = read_tensors(tmp_path / "converted", "model.")
    assert converted.keys() == original.keys()
    for name, tensor in original.items():
        assert torch.equal(converted[name], tensor.half()), name
    config, expected = load_config(tmp_path / "converted"), load_config(tmp_path / "hf")
    assert all(expected[field] == value for field, value in config.items()), config


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'TransformerSpec' of version 6; wanted is a 'WhisperSpec'"):
        convert_whisper(written("TransformerSpec", {}), CONFIG, tmp_path)
    whole = written("WhisperSpec", {"encoder/conv1/weight": np.zeros((4, 4), np.float16)})
    with pytest.raises(CheckpointError, match="cut off"):
        convert_whisper(whole[:-10], CONFIG, tmp_path)
