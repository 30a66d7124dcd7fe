"""Stages with random weights need config.json and a tokenizer alone; and a stage says which kernels it cannot use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from omni_python.models.qwen3_omni import stages
from omni_python.models.qwen3_omni.architecture import model_config
from omni_python.models.qwen3_omni.code2wav import load_code2wav
from omni_python.models.qwen3_omni.encoders import AudioEncoder
from omni_python.models.qwen3_omni.payloads import AudioInput
from omni_python.models.qwen3_omni.talker import load_talker
from omni_python.proto.errors import InvalidArgument
from tests.models.tiny_model import checkpoint


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint without its weights."""
    out = tmp_path_factory.mktemp("bare")
    for file in checkpoint().iterdir():
        if file.suffix != ".safetensors" and not file.name.endswith(".index.json"):
            shutil.copy(file, out)
    return out


def test_random_weights_keep_the_scale_of_what_goes_through_them(bare: Path) -> None:
    config = model_config(bare)
    talker = load_talker(bare, config, torch.float32, "cpu", "dummy")
    assert not any(weight.requires_grad or weight.is_meta for weight in talker.parameters())
    x = torch.randn(200, talker.codec_head.in_features)
    assert 0.7 < float(talker.codec_head(x).std()) < 1.4
    norm = talker.model.norm
    assert torch.equal(norm.weight, torch.ones_like(norm.weight))
    other = load_talker(bare, config, torch.float32, "cpu", "dummy")
    assert not torch.equal(talker.codec_head.weight, other.codec_head.weight)
    codes = torch.randint(0, 32, (1, config.code2wav_config.num_quantizers, 3))
    with torch.inference_mode():
        assert load_code2wav(bare, config, torch.float32, "cpu", "dummy").decode(codes).isfinite().all()


def test_every_stage_starts_with_random_weights(bare: Path) -> None:
    path = str(bare)
    for scheduler in (
        stages.create_thinker(path, kv_tokens=256, load_format="dummy"),
        stages.create_talker(path, kv_tokens=256, load_format="dummy"),
        stages.create_code2wav(path, load_format="dummy"),
    ):
        scheduler.start()
        scheduler.stop()
    bins = AudioEncoder(bare, load_format="dummy")._tower.config.num_mel_bins
    made = AudioEncoder(bare, load_format="dummy")(AudioInput(torch.randn(bins, 120), torch.tensor([120])))
    assert made.audio.isfinite().all() and len(made.audio) > 0


def test_what_cannot_be_is_said(bare: Path) -> None:
    path = str(bare)
    with pytest.raises(InvalidArgument, match=r"thinker cannot use kernels \"fused\": .*; say \"auto\" or \"plain\""):
        stages.create_thinker(path, kernels="fused", load_format="dummy")
    with pytest.raises(InvalidArgument, match="kernels 'quick' is not known; valid: auto, plain, fused"):
        stages.create_talker(path, kernels="quick")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="load_format 'none' is not known; valid: auto, dummy"):
        stages.create_code2wav(path, load_format="none")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match='for the thinker on engine "torch"'):
        stages.create_thinker(path, engine="sglang", kernels="fused")
