"""The tiny checkpoint: reproducible, loadable by Hugging Face, readable part by part."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni_python.commands import checkpoint as command
from omni_python.models.loading.checkpoint import CheckpointError, checkpoint_hash, load_config, read_tensors
from omni_python.models.qwen3_omni import tiny
from omni_python.models.qwen3_omni.tiny_config import Dimensions, tiny_config


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("checkpoint")
    tiny.build(out)
    return out


def test_weights_are_the_same_on_every_machine(checkpoint: Path) -> None:
    assert checkpoint_hash(checkpoint) == tiny.DEFAULT_HASH


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    assert tiny.build(tmp_path, seed=1) != tiny.DEFAULT_HASH


def test_hugging_face_loads_every_tensor(checkpoint: Path) -> None:
    from transformers import Qwen3OmniMoeForConditionalGeneration

    model, info = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    expert = model.thinker.model.layers[1].mlp.experts
    stored = read_tensors(checkpoint, "thinker.model.layers.1.mlp.experts.3.")
    fused = torch.cat([stored["gate_proj.weight"], stored["up_proj.weight"]])
    torch.testing.assert_close(expert.gate_up_proj[3], fused, rtol=0, atol=0)
    torch.testing.assert_close(expert.down_proj[3], stored["down_proj.weight"], rtol=0, atol=0)


def test_dimensions_change_the_structure(tmp_path: Path) -> None:
    size = Dimensions(thinker_layers=2, experts=6, code_groups=16, vision_layers=4, deepstack_layers=(1, 2, 3))
    shapes = tiny.tensor_shapes(tiny_config(size))
    assert "thinker.model.layers.1.mlp.experts.5.gate_proj.weight" in shapes
    assert "thinker.model.layers.2.input_layernorm.weight" not in shapes
    assert "talker.code_predictor.lm_head.14.weight" in shapes
    assert "thinker.visual.merger_list.2.ln_q.weight" in shapes
    tiny.build(tmp_path, size)
    assert set(load_file(tmp_path / "model.safetensors")) == set(shapes)


def test_reads_the_tensors_of_a_prefix_from_shards(checkpoint: Path, tmp_path: Path) -> None:
    whole = load_file(checkpoint / "model.safetensors")
    names = sorted(whole)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: whole[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    read = read_tensors(tmp_path, "thinker.audio_tower.")
    expected = {n.removeprefix("thinker.audio_tower."): t for n, t in whole.items() if "audio_tower" in n}
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], expected[name]) for name in expected)
    assert read_tensors(tmp_path, "code2wav.", dtype=torch.bfloat16)["code_embedding.weight"].dtype == torch.bfloat16
    assert checkpoint_hash(tmp_path) == checkpoint_hash(checkpoint)

    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors is missing"):
        read_tensors(tmp_path, "thinker.audio_tower.")


def test_errors_name_what_is_missing(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere.* is not there; `omni checkpoint` makes"):
        load_config(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_config(tmp_path)
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        read_tensors(tmp_path, "thinker.")
    with pytest.raises(CheckpointError, match=r"starts with 'vocoder\.'"):
        read_tensors(checkpoint, "vocoder.")
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(CheckpointError, match="cannot read"):
        read_tensors(tmp_path, "thinker.")


def test_the_command_writes_a_checkpoint_but_over_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    out = tmp_path / "new" / "checkpoint"
    assert command.run(parser.parse_args(["checkpoint", str(out)])) == 0
    assert tiny.DEFAULT_HASH in capsys.readouterr().out
    assert checkpoint_hash(out) == tiny.DEFAULT_HASH

    (tmp_path / "precious").write_text("x")
    assert command.run(parser.parse_args(["checkpoint", str(tmp_path)])) == 1
    assert "not an empty directory" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "precious"]
