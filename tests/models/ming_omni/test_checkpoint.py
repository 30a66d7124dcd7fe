"""The checkpoint's format: names and sizes are the published ones as far as they are known, and what does not fit is
said."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_python.models.loading.checkpoint import CheckpointError, read_tensors
from omni_python.models.ming_omni import tensor_shapes, tiny
from omni_python.models.ming_omni.architecture import talker_config, thinker_config, vae_config
from omni_python.models.ming_omni.audio_encoder import load_audio_encoder
from omni_python.models.ming_omni.audio_vae import load_audio_decoder
from omni_python.models.ming_omni.encoder_architecture import encoder_config, image_encoder_config
from omni_python.models.ming_omni.image_encoder import load_image_encoder
from omni_python.models.ming_omni.media import MediaReader
from omni_python.models.ming_omni.talker import load_talker
from omni_python.models.ming_omni.thinker import load_thinker
from omni_python.models.ming_omni.vae_encoder import load_latent_encoder
from omni_python.models.ming_omni.voices import MANIFEST, default_voice, voice_names
from tests.models.ming_omni.published import published_configs

DECODER = tiny.tiny_vae()["dec_kwargs"]
PARTLY = {**DECODER, "backbone": {**DECODER["backbone"], "max_window_layers": 1}}


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """A directory with the published sizes, whose tensors have no data; the AudioVAE's are not known, and the tiny
    one's."""
    configs = published_configs()
    config, talker, llm, vae = configs.values()
    shapes = {tmp_path: tensor_shapes.thinker_shapes(config["llm_config"] | {"num_hidden_layers": 2})}
    shapes[tmp_path] |= tensor_shapes.encoder_shapes(config) | tensor_shapes.vision_shapes(config)
    shapes |= {
        tmp_path / "talker": tensor_shapes.talker_shapes(talker, llm),
        tmp_path / "talker" / "vae": tensor_shapes.vae_shapes(vae),
    }

    def meta_tensors(path: Any, prefix: str, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
        found = {name: shape for name, shape in shapes[Path(path)].items() if name.startswith(prefix)}
        return {
            name.removeprefix(prefix): torch.empty(shape, dtype=dtype, device="meta") for name, shape in found.items()
        }

    for module in ("thinker", "talker", "image_encoder", "audio_encoder", "audio_vae", "vae_encoder"):
        monkeypatch.setattr(f"omni_python.models.ming_omni.{module}.read_tensors", meta_tensors)

    def write() -> Path:
        for folder, content in configs.items():
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "config.json").write_text(json.dumps(content))
        return tmp_path

    return write


def test_published_sizes_load_by_their_names(published: Callable[[], Path]) -> None:
    """About 100 billion parameters, 6 of them at work for a token, as the model card says; of the layers, all alike but
    the first, two are loaded."""
    directory = published()
    config = thinker_config(directory)
    layers = config.decoder.layers
    thinker = load_thinker(
        directory, replace(config, decoder=replace(config.decoder, layers=2)), torch.bfloat16, "meta"
    )
    sizes = {name: weight.numel() for name, weight in thinker.named_parameters()}
    layer = sum(size for name, size in sizes.items() if name.startswith("model.layers.1."))
    experts = sum(size for name, size in sizes.items() if name.startswith("model.layers.1.mlp.experts."))
    total = sum(sizes.values()) + (layers - 2) * layer
    assert 98e9 < total < 108e9
    assert 5e9 < total - (layers - 1) * experts * (256 - 8) / 256 < 8e9
    assert thinker.get_parameter("model.layers.1.mlp.experts.down_proj").shape == (256, 4096, 1024)
    talker = load_talker(directory, talker_config(directory), torch.bfloat16, "meta")
    assert 0.4e9 < sum(weight.numel() for weight in talker.model.parameters()) < 0.6e9
    encoder = load_audio_encoder(directory, encoder_config(directory), torch.bfloat16, "meta")
    assert 0.6e9 < sum(weight.numel() for weight in encoder.audio.parameters()) < 0.7e9  # Whisper large's
    seer = load_image_encoder(directory, image_encoder_config(directory), torch.bfloat16, "meta")
    assert 0.4e9 < sum(weight.numel() for weight in seer.vision.parameters()) < 0.5e9  # Qwen3-VL's
    load_audio_decoder(directory, vae_config(directory), torch.float32, "meta")
    load_latent_encoder(directory, vae_config(directory), "meta")


def test_the_tiny_checkpoint_has_every_constant_of_the_stream(ming: Path) -> None:
    talker, vae = talker_config(ming), vae_config(ming)
    assert (talker.latent, talker.patch, talker.history, talker.steps, talker.guidance) == (64, 4, 32, 10, 2.0)
    assert (vae.sample_rate, vae.samples_per_latent, vae.latent) == (44100, 4 * 882, 64)
    assert math.isclose(vae.sample_rate / vae.samples_per_latent, 12.5)


def test_two_builds_are_equal_and_seeds_differ(tmp_path: Path) -> None:
    first, again, other = (tiny.build(tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert first == again != other


@pytest.mark.parametrize(
    ("folder", "change", "message"),
    [
        ("", {"model_type": "qwen3_omni_moe"}, "model_type is 'qwen3_omni_moe', not 'bailingmm_moe_v2_lite'"),
        ("", {"llm_config": {}}, "has no 'num_attention_heads' in its llm_config"),
        ("", {"vision_config": {"model_type": "qwen2_5_vit"}}, "model_type is 'qwen2_5_vit', not 'qwen3_moe_vit'"),
        ("", {"vision_config": None}, "config.json has no 'vision_config' for its vision encoder"),
        ("talker", {"flowmodel": {"spk_dim": 192}}, "flowmodel.spk_dim is not supported"),
        ("talker", {"flowmodel": {"qk_norm": "layer"}}, "flowmodel.qk_norm 'layer' is not supported"),
        ("talker", {"flowmodel": None}, "its config.json has no 'flowmodel'"),
        ("talker/llm", {"use_sliding_window": True}, "talker/llm: use_sliding_window is not supported"),
        (
            "talker/vae",
            {"dec_kwargs": PARTLY},
            "from layer 1 on is not",
        ),
        ("talker/vae", {"dec_kwargs": None}, "its config.json has no 'dec_kwargs'"),
    ],
    ids=["family", "llm", "eye", "blind", "speaker", "norm", "flow", "window", "partly", "vae"],
)
def test_what_does_not_fit_is_said(
    published: Callable[[], Path], folder: str, change: dict[str, Any], message: str
) -> None:
    directory = published()
    file = directory / folder / "config.json"
    content = json.loads(file.read_text()) | change
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    with pytest.raises(CheckpointError, match=message):
        for read in (thinker_config, image_encoder_config, talker_config, vae_config):
            read(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_size": 14}, "preprocessor_config.json has other patches than vision_config"),
        ({"use_interleaved_frame_timestamp": False}, "only checkpoints with use_interleaved_frame_timestamp"),
    ],
    ids=["patches", "timestamps"],
)
def test_pictures_that_the_encoder_cannot_take_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny.tiny_config()))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(tiny.tiny_preprocessor() | change))
    with pytest.raises(CheckpointError, match=message):
        MediaReader(tmp_path, 1.0, 1, 1)


def test_missing_weights_are_named(ming: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*args: Any) -> dict[str, torch.Tensor]:
        return {name: t for name, t in read_tensors(*args).items() if "layers.2.mlp.experts.7.up_proj" not in name}

    monkeypatch.setattr("omni_python.models.ming_omni.thinker.read_tensors", without)
    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.experts\.7\.up_proj\.weight"):
        load_thinker(ming, thinker_config(ming), torch.float32, "cpu")


def test_voices_are_those_whose_sound_is_in_the_checkpoint(tmp_path: Path) -> None:
    assert voice_names(tmp_path) == ["default"] and default_voice(["default"]) == "default"
    manifest = tmp_path / "talker" / MANIFEST
    manifest.parent.mkdir(parents=True)
    (tmp_path / "outside.wav").write_bytes(b"sound")
    for name in ("a.wav", "b.wav"):
        (manifest.parent / name).write_bytes(b"sound")
    paths = {"Ann": "data/b.wav", "DB30": "data/a.wav", "gone": "data/c.wav", "outside": "../outside.wav"}
    entries: dict[str, Any] = {name: {"prompt_text": "words", "prompt_wav_path": path} for name, path in paths.items()}
    manifest.write_text(json.dumps(entries))
    assert voice_names(tmp_path) == ["ann", "db30", "default"]
    assert default_voice(voice_names(tmp_path)) == "db30" and default_voice(["ann", "default"]) == "ann"
    manifest.write_text(json.dumps({"Ann": {"prompt_text": "words"}}))
    with pytest.raises(CheckpointError, match="voice 'Ann' has no prompt_text and prompt_wav_path"):
        voice_names(tmp_path)
