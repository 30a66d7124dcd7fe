"""Checkpoints as published and as transformers saves them, and what is said of broken ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from omni_python.layers.language_model import LanguageModel
from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.loading.modules import on_meta
from omni_python.models.qwen2_5_omni.architecture import decoder_config, model_config
from omni_python.models.qwen2_5_omni.encoder import MediaEncoder
from omni_python.models.qwen2_5_omni.info import describe
from omni_python.models.qwen2_5_omni.stages import create_talker, create_thinker, create_token2wav
from omni_python.models.qwen2_5_omni.talker import Talker, load_talker
from omni_python.models.qwen2_5_omni.thinker import load_thinker
from omni_python.models.qwen2_5_omni.token2wav import load_token2wav
from omni_python.models.qwen2_5_omni.voices import FILE
from tests.oracle.qwen2_5_omni_reference import Reference

INV_FREQ = "token2wav.code2wav_dit_model.rotary_embed.inv_freq"
"""A buffer that older versions of transformers saved."""


def test_what_transformers_saves_in_pieces_is_the_same(qwen25: Path, reference: Reference, tmp_path: Path) -> None:
    reference.model.save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    for name in (FILE, "tokenizer.json", "tokenizer_config.json", "chat_template.json", "preprocessor_config.json"):
        shutil.copyfile(qwen25 / name, tmp_path / name)
    (saved, built), plain = (model_config(path) for path in (tmp_path, qwen25)), (torch.float32, "cpu")
    assert decoder_config(saved.talker_config) == decoder_config(built.talker_config)
    for load in (load_thinker, load_talker):
        assert_equal(load(tmp_path, saved, *plain), load(qwen25, built, *plain))
    assert_equal(load_token2wav(tmp_path, saved, "cpu")._dit, load_token2wav(qwen25, built, "cpu")._dit)
    MediaEncoder(tmp_path, saved, *plain)
    assert describe(str(tmp_path)) == describe(str(qwen25))


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_the_published_sizes_are_those_of_our_modules() -> None:
    """With few layers; the defaults of transformers' config are the published model's sizes."""
    from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as modules
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniConfig

    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    few = {"num_hidden_layers": 2, "rope_parameters": rope}
    config = Qwen2_5OmniConfig(thinker_config={"text_config": few}, talker_config=few)
    text = config.thinker_config.text_config
    with on_meta():
        published = (
            modules.Qwen2_5OmniThinkerTextModel(text),
            modules.Qwen2_5OmniTalkerForConditionalGeneration(config.talker_config),
        )
        own = LanguageModel(decoder_config(text), text.vocab_size).model, Talker(config.talker_config)
    thinker, talker = map(shapes, published)
    assert shapes(own[0]) == thinker and thinker["embed_tokens.weight"] == (152064, 3584)
    talker["embed_tokens.weight"] = talker.pop("model.embed_tokens.weight")
    assert shapes(own[1]) == talker and talker["codec_head.weight"] == (8448, 3584)


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def changed(qwen25: Path, out: Path, **config: Any) -> Path:
    shutil.copytree(qwen25, out)
    content = json.loads((out / "config.json").read_text("utf-8"))
    (out / "config.json").write_text(json.dumps({**content, **config}), "utf-8")
    return out


def test_buffers_of_older_versions_are_left_out(qwen25: Path, tmp_path: Path) -> None:
    out = changed(qwen25, tmp_path / "older")
    weights = load_file(out / "model.safetensors")
    save_file({**weights, INV_FREQ: torch.zeros(8)}, out / "model.safetensors")
    inverse = load_token2wav(out, model_config(out), "cpu")._dit.rotary_embed.inv_freq
    assert inverse[0] == 1.0, "computed by the module itself"


def test_a_tied_head_is_the_embedding(qwen25: Path, tmp_path: Path) -> None:
    thinker = json.loads((qwen25 / "config.json").read_text("utf-8"))["thinker_config"]
    out = changed(qwen25, tmp_path / "tied", thinker_config={**thinker, "tie_word_embeddings": True})
    weights = load_file(out / "model.safetensors")
    del weights["thinker.lm_head.weight"]
    save_file(weights, out / "model.safetensors")
    tied = load_thinker(out, model_config(out), torch.float32, "cpu")
    assert torch.equal(tied.lm_head.weight, weights["thinker.model.embed_tokens.weight"])


def test_broken_checkpoints_are_told(qwen25: Path, tmp_path: Path) -> None:
    other = changed(qwen25, tmp_path / "other", model_type="qwen3_omni_moe")
    with pytest.raises(CheckpointError, match="model_type is 'qwen3_omni_moe', not 'qwen2_5_omni'"):
        create_thinker(str(other))
    mute = changed(qwen25, tmp_path / "mute")
    (mute / FILE).unlink()
    for ask in (describe, create_talker, create_token2wav):
        with pytest.raises(CheckpointError, match=f"no {FILE}"):
            ask(str(mute))
    weights = load_file(mute / "model.safetensors")
    del weights["talker.codec_head.weight"]
    save_file(weights, mute / "model.safetensors")
    with pytest.raises(CheckpointError, match="the weights of the talker do not fit"):
        load_talker(mute, model_config(mute), torch.float32, "cpu")
