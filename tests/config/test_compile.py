"""The model repository that a pipeline is compiled to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from tritonclient.grpc import model_config_pb2 as pb

from omni_python.config import ConfigError, PipelineConfig, resolve_topology
from omni_python.config.compile import compile_pipeline, compiled_models, config_text, model_configs
from omni_python.config.files import load_pipeline
from omni_python.config.topology import replica_of_instance
from tests.config.family import SpeechPipelineConfig
from tests.config.pipelines import pipelines


def speech(**changes: Any) -> SpeechPipelineConfig:
    return SpeechPipelineConfig(**{"model_path": "../checkpoints/speech", "name": "speech", **changes})


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(path: Path) -> pb.ModelConfig:
    return text_format.Parse(path.read_text(), pb.ModelConfig())


def test_files_and_their_order(tmp_path: Path) -> None:
    written = compile_pipeline(speech(), tmp_path)
    processes = ["decode", "encoder", "front", "talker", "thinker"]
    expected = ["speech/1/pipeline.yaml", "speech/config.pbtxt"]
    expected += [f"speech_{process}/{name}" for process in processes for name in ("1/.gitkeep", "config.pbtxt")]
    assert [str(path.relative_to(tmp_path)) for path in written] == expected
    assert sorted(tree(tmp_path)) == expected
    assert load_pipeline(tmp_path / "speech/1/pipeline.yaml") == speech()


def test_the_orchestrator(tmp_path: Path) -> None:
    compile_pipeline(speech(), tmp_path)
    model = read(tmp_path / "speech/config.pbtxt")
    assert (model.name, model.backend, model.max_batch_size) == ("speech", "omni_python", 0)
    assert model.model_transaction_policy.decoupled
    assert [(group.kind, group.count, list(group.gpus)) for group in model.instance_group] == [
        (pb.ModelInstanceGroup.KIND_CPU, 1, [])
    ]
    assert {key: value.string_value for key, value in model.parameters.items()} == {
        "omni_role": "orchestrator",
        "omni_pipeline": "speech",
    }
    assert all(tensor.optional for tensor in model.input)
    inputs = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in model.input}
    assert inputs == {
        "text_input": (pb.TYPE_STRING, [1]),
        "messages": (pb.TYPE_STRING, [1]),
        "audio": (pb.TYPE_FP32, [-1]),
        "audio_sample_rate": (pb.TYPE_INT32, [1]),
        "audios": (pb.TYPE_STRING, [-1]),
        "images": (pb.TYPE_STRING, [-1]),
        "videos": (pb.TYPE_STRING, [-1]),
        "modalities": (pb.TYPE_STRING, [-1]),
        "voice": (pb.TYPE_STRING, [1]),
        "audio_format": (pb.TYPE_STRING, [1]),
        "sampling_parameters": (pb.TYPE_STRING, [1]),
        "stream": (pb.TYPE_BOOL, [1]),
        "exclude_input_in_output": (pb.TYPE_BOOL, [1]),
        "describe": (pb.TYPE_BOOL, [1]),
        "trace_id": (pb.TYPE_STRING, [1]),
        "cancel": (pb.TYPE_STRING, [1]),
    }
    outputs = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in model.output}
    assert outputs == {
        "text_output": (pb.TYPE_STRING, [1]),
        "audio_output": (pb.TYPE_FP32, [-1]),
        "audio_sample_rate": (pb.TYPE_INT32, [1]),
        "audio_base64": (pb.TYPE_STRING, [1]),
        "finish_reason": (pb.TYPE_STRING, [1]),
        "num_input_tokens": (pb.TYPE_UINT32, [1]),
        "num_output_tokens": (pb.TYPE_UINT32, [1]),
        "usage": (pb.TYPE_STRING, [1]),
        "stage_timings": (pb.TYPE_STRING, [1]),
        "trace": (pb.TYPE_STRING, [1]),
        "recordings": (pb.TYPE_STRING, [1]),
        "description": (pb.TYPE_STRING, [1]),
        "uptime_ms": (pb.TYPE_INT64, [1]),
    }


def test_a_stage_on_a_gpu(tmp_path: Path) -> None:
    compile_pipeline(speech(), tmp_path)
    model = read(tmp_path / "speech_talker/config.pbtxt")
    assert (model.name, model.backend, model.max_batch_size) == ("speech_talker", "omni_python", 0)
    assert model.model_transaction_policy.decoupled
    assert [(group.kind, group.count, list(group.gpus)) for group in model.instance_group] == [
        (pb.ModelInstanceGroup.KIND_GPU, 1, [1])
    ]
    assert {key: value.string_value for key, value in model.parameters.items()} == {
        "omni_role": "stage",
        "omni_pipeline": "speech",
        "omni_process": "talker",
    }
    assert [(t.name, t.data_type, list(t.dims), t.optional) for t in model.input] == [
        ("recording", pb.TYPE_UINT8, [-1], False),
    ]
    assert [(t.name, t.data_type, list(t.dims)) for t in model.output] == [("reply", pb.TYPE_UINT8, [-1])]


def test_a_tensor_parallel_stage_is_one_instance_on_its_first_gpu() -> None:
    base = speech()
    thinker = base.stage("thinker").model_copy(update={"gpu": [4, 2], "tp_size": 2})
    config = base.changed(stages=[thinker if stage.name == "thinker" else stage for stage in base.stages])
    model = next(m for m in model_configs(resolve_topology(config)) if m.name == "speech_thinker")
    assert [(group.count, list(group.gpus)) for group in model.instance_group] == [(1, [4])]


def test_each_replica_is_an_instance_with_a_name_and_a_gpu() -> None:
    changes: dict[str, dict[str, Any]] = {
        "encoder": {"replicas": 3},
        "thinker": {"replicas": 2, "gpu": [2, 3, 4, 5], "tp_size": 2},
        "talker": {"replicas": 2, "gpu": [6, 7]},
        "vocoder": {"replicas": 2, "gpu": [6, 7]},
    }
    base = speech()
    config = base.changed(stages=[stage.model_copy(update=changes.get(stage.name, {})) for stage in base.stages])
    topology = resolve_topology(config)
    found = {}
    for model in model_configs(topology):
        groups = model.instance_group
        found[model.name] = [(g.name, g.host_policy, g.kind, g.count, list(g.gpus)) for g in groups]
    cpu, gpu = pb.ModelInstanceGroup.KIND_CPU, pb.ModelInstanceGroup.KIND_GPU
    assert found["speech_encoder"] == [(f"speech_encoder_r{i}", f"r{i}", cpu, 1, []) for i in range(3)]
    assert found["speech_thinker"] == [
        ("speech_thinker_r0", "r0", gpu, 1, [2]),
        ("speech_thinker_r1", "r1", gpu, 1, [4]),
    ]
    assert [group[-1] for group in found["speech_talker"]] == [[6], [7]]
    assert found["speech_decode"] == [("", "", cpu, 1, [])]
    thinker = topology.group_of("thinker")
    assert thinker.replica_gpus == ((2, 3), (4, 5)) and thinker.gpus == (2, 3)
    assert [replica_of_instance(f"{name}_0") for name, *_ in found["speech_encoder"]] == [0, 1, 2]
    assert replica_of_instance("speech_decode_0_0") == replica_of_instance("speech_decode_0") == 0


def test_compiling_again_changes_nothing(tmp_path: Path) -> None:
    compile_pipeline(speech(), tmp_path)
    before = tree(tmp_path)
    compile_pipeline(load_pipeline(tmp_path / "speech/1/pipeline.yaml"), tmp_path)
    assert tree(tmp_path) == before
    assert all(
        text.startswith(b"# Written by `omni compile`") for name, text in before.items() if name.endswith(".pbtxt")
    )


def test_a_name_that_comes_from_the_model_path_is_written_out(tmp_path: Path) -> None:
    compile_pipeline(SpeechPipelineConfig(model_path="org/Speech-1.5"), tmp_path)
    assert load_pipeline(tmp_path / "Speech-1_5/1/pipeline.yaml").name == "Speech-1_5"


def test_models_that_are_no_longer_needed_go(tmp_path: Path) -> None:
    compile_pipeline(speech(), tmp_path)
    compile_pipeline(speech(name="speech_b"), tmp_path)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/config.pbtxt").write_text('name: "foreign"\nbackend: "python"\n')
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/config.pbtxt").write_text("not a configuration")
    others = {name: text for name, text in tree(tmp_path).items() if not name.startswith(("speech/", "speech_"))}
    assert len(others) == 2

    compile_pipeline(speech(fused_stages=[["aggregate", "thinker"]]), tmp_path)
    assert compiled_models(tmp_path, "speech") == [
        "speech",
        "speech_decode",
        "speech_encoder",
        "speech_front",
        "speech_talker",
    ]
    assert not (tmp_path / "speech_thinker").exists()
    assert len(compiled_models(tmp_path, "speech_b")) == 6
    assert others.items() <= tree(tmp_path).items()


def test_folders_of_others_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "speech_talker/1").mkdir(parents=True)
    (tmp_path / "speech_talker/1/model.py").write_text("theirs")
    compile_pipeline(speech(name="speech_decode"), tmp_path)
    before = tree(tmp_path)
    with pytest.raises(ConfigError) as caught:
        compile_pipeline(speech(), tmp_path)
    assert [problem.path for problem in caught.value.problems] == ["name", "name"]
    assert "speech_talker is not part of pipeline 'speech'" in str(caught.value)
    assert tree(tmp_path) == before


@given(pipelines())
@settings(max_examples=25)
def test_texts_read_back(config: PipelineConfig) -> None:
    for model in model_configs(resolve_topology(config)):
        text = config_text(model)
        assert text_format.Parse(text, pb.ModelConfig()) == model
        again = pb.ModelConfig()
        # Maps that are filled in another order print the same.
        again.CopyFrom(model)
        parameters = dict(reversed([(key, value.string_value) for key, value in model.parameters.items()]))
        again.ClearField("parameters")
        for key, value in parameters.items():
            again.parameters[key].string_value = value
        assert config_text(again) == text
