"""The checkpoint's format: names and shapes are the published ones, and what does not fit is said."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_python.models.fish_s2_pro import tiny
from omni_python.models.fish_s2_pro.architecture import model_config
from omni_python.models.fish_s2_pro.codec import CodecDecoder, CodecEncoder
from omni_python.models.fish_s2_pro.codec_checkpoint import (
    PUBLISHED,
    _of,
    codec_sizes,
    load_decoder,
    read_codec,
    without_weight_norm,
)
from omni_python.models.fish_s2_pro.dual_ar import load_dual_ar
from omni_python.models.loading.checkpoint import CheckpointError
from tests.models.fish_s2_pro.published import published_config

HEADERS_SHA256 = "7080b1c9b5d5e95589a1efa18db19616170d7e35664e2e4e7f744bbf7180adad"
"""Of "name|BF16|shape" of every tensor of fishaudio/s2-pro at 1de9996b, sorted, as voicehub records it; with their
number and that of their parameters."""
TENSORS, PARAMETERS = 358, 4_561_852_416
CODEC_TENSORS, CODEC_PARAMETERS = 535, 391_430_530
"""Of codec.pth, without buffers, by voicehub; 60 and 20 weights have a norm, of the newer and older kind."""


def published_codec() -> tiny.Shapes:
    return tiny.codec_shapes(64, 1536, (4096, *[1024] * 9), encoder_layers=4, module_layers=8)


def test_language_tensors_are_those_of_the_published_headers() -> None:
    shapes = tiny.language_shapes(published_config())
    rows = sorted(f"{name}|BF16|{'x'.join(map(str, shape))}" for name, shape in shapes.items())
    assert (len(shapes), sum(map(math.prod, shapes.values()))) == (TENSORS, PARAMETERS)
    assert hashlib.sha256("\n".join(rows).encode()).hexdigest() == HEADERS_SHA256


def test_the_published_language_model_loads_by_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every name and shape of the published headers, on the meta device."""
    config = published_config()
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = tiny.language_shapes(config)

    def meta_tensors(path: Any, prefix: str, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
        names = [name for name in shapes if name.startswith(prefix)]
        return {name.removeprefix(prefix): torch.empty(shapes[name], dtype=dtype, device="meta") for name in names}

    monkeypatch.setattr("omni_python.models.fish_s2_pro.dual_ar.read_tensors", meta_tensors)
    model = load_dual_ar(tmp_path, model_config(tmp_path), torch.bfloat16, "meta")
    copied = model.speak.weight.numel()
    assert sum(weight.numel() for weight in model.parameters()) - copied == PARAMETERS
    assert model.speak.weight.shape == (4097, 2560)


def test_the_published_codec_loads_by_its_names() -> None:
    shapes = published_codec()
    assert (len(shapes), sum(map(math.prod, shapes.values()))) == (CODEC_TENSORS, CODEC_PARAMETERS)
    assert sum(name.endswith("original1") for name in shapes) == 60
    assert sum(name.endswith("weight_v") for name in shapes) == 20
    tensors = without_weight_norm({name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
    assert codec_sizes(tensors) == PUBLISHED
    used: set[str] = set()
    with torch.device("meta"):
        halves = CodecEncoder(PUBLISHED), CodecDecoder(PUBLISHED)
    for half in halves:
        found = _of(half, tensors, torch.float32, "meta")
        half.load_state_dict(found, strict=True, assign=True)
        used |= found.keys()
    # One of a transformer's tensors becomes three; nothing of the checkpoint is left over.
    joined = sum(name.endswith("wqkv.weight") for name in tensors)
    assert len(used) == len(tensors) + 2 * joined


def test_the_tiny_checkpoint_is_the_same_everywhere(fish: Path, tmp_path: Path) -> None:
    assert tiny.build(tmp_path) == "6b5cfbc4d48862aabe77cd560e22371411037b68d8862a98d1865c7768c93bc4"
    assert (tmp_path / "config.json").read_bytes() == (fish / "config.json").read_bytes()


def test_a_codec_inside_a_training_state_is_found(fish: Path, tmp_path: Path) -> None:
    """fish-speech's own loader takes these forms too; stored buffers are not asked for."""
    stored = torch.load(fish / "codec.pth", weights_only=True)
    stored = {f"generator.{name}": tensor for name, tensor in stored.items()}
    stored |= {"generator.quantizer.pre_module.freqs_cis": torch.zeros(4), "discriminator.weight": torch.zeros(1)}
    torch.save({"state_dict": stored}, tmp_path / "codec.pth")
    plain, wrapped = read_codec(fish), read_codec(tmp_path)
    assert plain.keys() == wrapped.keys()
    assert all(torch.equal(plain[name], wrapped[name]) for name in plain)


def test_what_does_not_fit_is_said(fish: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no codec.pth"):
        load_decoder(tmp_path, torch.float32, "cpu")
    (tmp_path / "codec.pth").write_bytes(b"no file of torch's")
    with pytest.raises(CheckpointError, match="cannot read"):
        load_decoder(tmp_path, torch.float32, "cpu")
    torch.save({"weight": torch.zeros(1)}, tmp_path / "codec.pth")
    with pytest.raises(CheckpointError, match="not those of S2-Pro's codec"):
        load_decoder(tmp_path, torch.float32, "cpu")
    for change, message in (
        ({"model_type": "dual_ar"}, "model_type is 'dual_ar'"),
        ({"semantic_end_token_id": 300}, "33 semantic tokens for 64 codes"),
        ({"text_config": {}}, "config.json has no 'dim'"),
    ):
        config = {**json.loads((fish / "config.json").read_text()), **change}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=message):
            model_config(tmp_path)
    shutil.copy(fish / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match="neither model.safetensors"):
        load_dual_ar(tmp_path, model_config(tmp_path), torch.float32, "cpu")
