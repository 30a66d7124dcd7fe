"""The published 30B-A3B checkpoint, in everything but the data: its config, its shards' names and shapes, its index.

The data files are sparse and the tensors are loaded onto the meta device, so nothing of their 70 GB is read or kept.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import struct
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.qwen3_omni import tiny
from omni_python.models.qwen3_omni.architecture import model_config
from omni_python.models.qwen3_omni.code2wav import load_code2wav
from omni_python.models.qwen3_omni.encoders import AudioEncoder, VisionEncoder
from omni_python.models.qwen3_omni.preprocess import Preprocessor
from omni_python.models.qwen3_omni.talker import load_talker
from omni_python.models.qwen3_omni.thinker import load_thinker
from omni_python.models.qwen3_omni.tiny_config import ASSETS
from omni_python.models.qwen3_omni.weights import decoder_config

PUBLISHED = Path(__file__).parent / "published_config.json"
INDEX = "model.safetensors.index.json"
Shape = tuple[int, ...]

DERIVED: dict[str, Shape] = {
    "thinker.model.embed_tokens.weight": (152064, 2048),
    "thinker.lm_head.weight": (152064, 2048),
    "thinker.model.layers.47.self_attn.q_proj.weight": (4096, 2048),
    "thinker.model.layers.47.self_attn.k_proj.weight": (512, 2048),
    "thinker.model.layers.47.self_attn.q_norm.weight": (128,),
    "thinker.model.layers.47.mlp.gate.weight": (128, 2048),
    "thinker.model.layers.47.mlp.experts.127.up_proj.weight": (768, 2048),
    "thinker.model.layers.47.mlp.experts.127.down_proj.weight": (2048, 768),
    "thinker.audio_tower.conv_out.weight": (1280, 480 * 16),
    "thinker.audio_tower.layers.31.fc1.weight": (5120, 1280),
    "thinker.audio_tower.proj2.weight": (2048, 1280),
    "thinker.visual.patch_embed.proj.weight": (1152, 3, 2, 16, 16),
    "thinker.visual.pos_embed.weight": (48 * 48, 1152),
    "thinker.visual.blocks.26.mlp.linear_fc1.weight": (4304, 1152),
    "thinker.visual.merger.mlp.2.weight": (2048, 4 * 1152),
    "thinker.visual.merger_list.2.mlp.2.weight": (2048, 4 * 1152),
    "talker.model.codec_embedding.weight": (3072, 1024),
    "talker.codec_head.weight": (3072, 1024),
    "talker.text_projection.linear_fc1.weight": (2048, 2048),
    "talker.hidden_projection.linear_fc2.weight": (1024, 2048),
    "talker.model.layers.19.self_attn.q_proj.weight": (2048, 1024),
    "talker.model.layers.19.self_attn.v_proj.weight": (256, 1024),
    "talker.model.layers.19.mlp.experts.127.gate_proj.weight": (384, 1024),
    "talker.model.layers.19.mlp.shared_expert.down_proj.weight": (1024, 768),
    "talker.model.layers.19.mlp.shared_expert_gate.weight": (1, 1024),
    "talker.code_predictor.model.layers.4.self_attn.k_proj.weight": (1024, 1024),
    "talker.code_predictor.model.layers.4.mlp.gate_proj.weight": (3072, 1024),
    "talker.code_predictor.model.codec_embedding.14.weight": (2048, 1024),
    "talker.code_predictor.lm_head.14.weight": (2048, 1024),
    "code2wav.code_embedding.weight": (16 * 2048, 1024),
    "code2wav.pre_transformer.layers.7.self_attn.q_proj.weight": (1024, 1024),
    "code2wav.upsample.1.0.conv.weight": (1024, 1024, 2),
    "code2wav.decoder.0.conv.weight": (1536, 1024, 7),
    "code2wav.decoder.6.conv.weight": (1, 96, 7),
}
"""Worked out by hand from the published config."""

ONE_MORE = {
    "layers of the thinker": "thinker.model.layers.48.",
    "taps of the deepstack": "thinker.visual.merger_list.3.",
    "layers of the talker": "talker.model.layers.20.",
    "code groups": "talker.code_predictor.lm_head.15.",
    "layers of the code predictor": "talker.code_predictor.model.layers.5.",
    "experts": "thinker.model.layers.0.mlp.experts.128.",
    "layers of the audio encoder": "thinker.audio_tower.layers.32.",
    "layers of the vision encoder": "thinker.visual.blocks.27.",
    "layers of the vocoder": "code2wav.pre_transformer.layers.8.",
}


@cache
def published_shapes() -> dict[str, Shape]:
    """What the published safetensors files hold: Hugging Face's model, its fused experts written one by one.

    Buffers (rotary frequencies, the audio encoder's positions, the vocoder's code offsets) are in no file.
    """
    with torch.device("meta"):
        model = Qwen3OmniMoeForConditionalGeneration(
            Qwen3OmniMoeConfig.from_dict(json.loads(PUBLISHED.read_text("utf-8")))
        )
    return dict(one_by_one((name, tuple(tensor.shape)) for name, tensor in model.named_parameters()))


def one_by_one(shapes: Iterator[tuple[str, Shape]]) -> Iterator[tuple[str, Shape]]:
    """The published names of parameters among which experts may be fused."""
    for name, shape in shapes:
        if not (match := re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj", name)):
            yield name, shape
            continue
        for expert in range(shape[0]):
            if match[2] == "down":
                yield f"{match[1]}.{expert}.down_proj.weight", shape[1:]
            else:
                yield f"{match[1]}.{expert}.gate_proj.weight", (shape[1] // 2, shape[2])
                yield f"{match[1]}.{expert}.up_proj.weight", (shape[1] // 2, shape[2])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published")
    shutil.copyfile(PUBLISHED, out / "config.json")
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copyfile(ASSETS / name, out / name)
    tiny.write_settings(out)
    shards: dict[str, dict[str, Shape]] = defaultdict(dict)
    for name, shape in published_shapes().items():
        layer = re.match(r"(thinker|talker)\.model\.layers\.\d+", name)
        shards[f"{layer[0] if layer else name.split('.')[0]}.safetensors"][name] = shape
    for file, shapes in shards.items():
        write_sparse(out / file, shapes)
    weight_map = {name: file for file, shapes in shards.items() for name in shapes}
    (out / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return out


def write_sparse(path: Path, shapes: dict[str, Shape]) -> None:
    """A safetensors file of bfloat16 tensors, all zeros, which takes no more room than its header."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(written)) + written)
        file.truncate(8 + len(written) + end)


def load_all(checkpoint: Path) -> dict[str, nn.Module]:
    """Every stage's module by the prefix of its weights; none of them takes memory."""
    config = model_config(checkpoint)
    placement: Any = (torch.bfloat16, "meta")
    with torch.device("meta"):  # the modules that are built on the CPU for their buffers
        return {
            "thinker.": load_thinker(checkpoint, config, *placement),
            "thinker.audio_tower.": AudioEncoder(checkpoint, "meta", torch.bfloat16)._tower,
            "thinker.visual.": VisionEncoder(checkpoint, "meta", torch.bfloat16)._tower,
            "talker.": load_talker(checkpoint, config, *placement),
            "code2wav.": load_code2wav(checkpoint, config, *placement)._module,
        }


@pytest.fixture(scope="module")
def stages(checkpoint: Path) -> dict[str, nn.Module]:
    return load_all(checkpoint)


def test_the_stages_together_use_every_published_weight(stages: dict[str, nn.Module]) -> None:
    used: dict[str, Shape] = {}
    for prefix, module in stages.items():
        for name, shape in one_by_one((name, tuple(p.shape)) for name, p in module.named_parameters()):
            if name == "thinker_embedding.weight":  # the talker's copy
                assert shape == published_shapes()["thinker.model.embed_tokens.weight"]
                continue
            assert prefix + name not in used
            used[prefix + name] = shape
    assert used == published_shapes()


def test_weights_have_the_published_size() -> None:
    shapes = published_shapes()
    assert len(shapes) == 28_010
    assert sum(map(math.prod, shapes.values())) == 35_259_818_545
    assert {name: shapes[name] for name in DERIVED} == DERIVED
    assert not [name for after in ONE_MORE.values() for name in shapes if name.startswith(after)]


def test_every_weight_keeps_its_type(stages: dict[str, nn.Module]) -> None:
    for module in stages.values():
        assert {(p.dtype, p.device.type) for p in module.parameters()} == {(torch.bfloat16, "meta")}


def test_the_decoders_sizes() -> None:
    config = Qwen3OmniMoeConfig.from_dict(json.loads(PUBLISHED.read_text("utf-8")))
    thinker = decoder_config(config.thinker_config.text_config)
    talker = decoder_config(config.talker_config.text_config)
    predictor = decoder_config(config.talker_config.code_predictor_config)
    assert (thinker.layers, thinker.heads, thinker.kv_heads, thinker.head_dim) == (48, 32, 4, 128)
    assert (talker.layers, talker.heads, talker.kv_heads, talker.head_dim) == (20, 16, 2, 128)
    assert (predictor.layers, predictor.heads, predictor.kv_heads, predictor.head_dim) == (5, 16, 8, 128)
    assert [(d.experts, d.experts_per_token, d.shared_intermediate) for d in (thinker, talker, predictor)] == [
        (128, 8, 0),
        (128, 6, 768),
        (0, 0, 0),
    ]
    assert [d.mrope_sections and list(d.mrope_sections) for d in (thinker, talker, predictor)] == [
        [24, 20, 20],
        [24, 20, 20],
        None,
    ]
    assert {(d.rope_theta, d.norm_eps, d.dense_layers) for d in (thinker, talker, predictor)} == {
        (1_000_000, 1e-6, frozenset())
    }


def test_the_vocoder_makes_80_ms_a_frame(checkpoint: Path) -> None:
    with torch.device("meta"):
        vocoder = load_code2wav(checkpoint, model_config(checkpoint), torch.bfloat16, "meta")
    assert (vocoder.groups, vocoder.samples_per_frame, vocoder.trim, vocoder.sample_rate) == (16, 1920, 555, 24_000)
    assert vocoder._module.config.sliding_window == 72


def test_preprocessing_reads_the_published_config(checkpoint: Path) -> None:
    preprocess = Preprocessor(checkpoint, speech=True)
    assert preprocess.voices == ["aiden", "chelsie", "ethan"]
    assert preprocess.context == 65_536


MISSING = {
    "thinker.model.layers.47.mlp.experts.5.up_proj.weight": r"has no model\.layers\.47\.mlp\.experts\.5\.up_proj",
    "thinker.model.layers.0.self_attn.q_norm.weight": r"weights of the thinker .*layers\.0\.self_attn\.q_norm",
    "talker.code_predictor.lm_head.7.weight": r"weights of the talker .*lm_head\.7",
    "talker.model.layers.3.mlp.shared_expert_gate.weight": r"weights of the talker .*shared_expert_gate",
    "code2wav.decoder.0.conv.bias": r"weights of the code2wav .*decoder\.0\.conv\.bias",
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_weight_is_named(checkpoint: Path, tmp_path: Path, name: str) -> None:
    weight_map = json.loads((checkpoint / INDEX).read_text())["weight_map"]
    del weight_map[name]
    with pytest.raises(CheckpointError, match=f"(?s){MISSING[name]}"):
        load_stage_of(name, changed(checkpoint, tmp_path, weight_map))


@pytest.mark.parametrize("what", ["layers of the thinker", "code groups", "layers of the vocoder"])
def test_weights_that_the_config_has_no_place_for_are_refused(checkpoint: Path, tmp_path: Path, what: str) -> None:
    prefix = ONE_MORE[what]
    weight_map = json.loads((checkpoint / INDEX).read_text())["weight_map"]
    before = re.sub(r"\.(\d+)\.$", lambda last: f".{int(last[1]) - 1}.", prefix)
    more = {prefix + n.removeprefix(before): published_shapes()[n] for n in weight_map if n.startswith(before)}
    assert more
    write_sparse(tmp_path / "more.safetensors", more)
    weight_map |= dict.fromkeys(more, "more.safetensors")
    with pytest.raises(CheckpointError, match="do not fit its config"):
        load_stage_of(prefix, changed(checkpoint, tmp_path, weight_map))


def changed(checkpoint: Path, out: Path, weight_map: dict[str, str]) -> Path:
    """The same checkpoint with another index."""
    for file in checkpoint.iterdir():
        if file.name != INDEX:
            (out / file.name).symlink_to(file)
    (out / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return out


def load_stage_of(name: str, checkpoint: Path) -> None:
    load = {"thinker": load_thinker, "talker": load_talker, "code2wav": load_code2wav}[name.split(".")[0]]
    with torch.device("meta"):
        load(checkpoint, model_config(checkpoint), torch.bfloat16, "meta")
