"""Pipelines as YAML files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings

from omni_python.config import ConfigError, PipelineConfig, StageConfig
from omni_python.config.files import dump_pipeline, load_pipeline, parse_pipeline, save_pipeline
from tests.config.family import SpeechPipelineConfig
from tests.config.pipelines import pipelines


@given(pipelines())
@settings(max_examples=60)
def test_every_pipeline_comes_back(config: PipelineConfig) -> None:
    text = dump_pipeline(config)
    read = parse_pipeline(text, "text")
    assert read == config
    assert dump_pipeline(read) == text


def test_a_family_comes_back_as_its_own_class(tmp_path: Path) -> None:
    config = SpeechPipelineConfig(model_path="../checkpoints/speech", env_defaults={"A": "1", "B": "yes"})
    save_pipeline(config, tmp_path / "pipeline.yaml")
    read = load_pipeline(tmp_path / "pipeline.yaml")
    assert type(read) is SpeechPipelineConfig
    assert read == config


def test_files_hold_no_defaults_and_keep_the_order() -> None:
    data = yaml.safe_load(dump_pipeline(SpeechPipelineConfig(model_path="org/Speech-1")))
    assert list(data) == ["config_cls", "model_path", "stages"]
    assert [stage["name"] for stage in data["stages"]][:3] == ["prepare", "encoder", "aggregate"]
    assert data["stages"][4] == {
        "name": "decode",
        "process": "decode",
        "factory": "tests.config.family.create_cpu",
        "terminal": True,
    }


@pytest.mark.parametrize(
    "value", ["\x85", "a\nb\n", "\r", "\u2028", "\ufeff", "\t", "on", "1e3", "0x1", "~", "", " a ", "#", "中文", "a: b"]
)
def test_odd_strings_come_back(value: str) -> None:
    config = SpeechPipelineConfig(
        model_path="m", env_defaults={"A": value}, runtime_overrides={"decode": {"a": [value]}}
    )
    assert parse_pipeline(dump_pipeline(config), "text") == config


class NixlPipelineConfig(SpeechPipelineConfig):
    relay_backend: str = "nixl"  # type: ignore[assignment]


def test_a_value_that_only_the_class_lacks_is_written() -> None:
    """The base class's default has to stand in the file where the subclass has another."""
    for backend in ("shm", "nixl", "mooncake"):
        config = NixlPipelineConfig(model_path="org/Speech-1", relay_backend=backend)
        assert parse_pipeline(dump_pipeline(config), "text").relay_backend == backend


def test_a_class_inside_a_function_cannot_be_saved() -> None:
    class Hidden(SpeechPipelineConfig):
        pass

    with pytest.raises(ConfigError, match=r"config_cls: .*Hidden"):
        dump_pipeline(Hidden(model_path="org/Speech-1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages: [", r"^here: is not valid YAML: line 1, column 10: while parsing a flow node, expected the node"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("", "must be a YAML mapping with model_path and stages, but holds nothing"),
        ("- a", "but holds a list"),
        ("model_path: a\nmodel_path: b", "here, line 2: the key 'model_path' stands twice"),
        ("model_path: a\nstages:\n- name: x\n  1: y", "here, line 4: the key '1' must be a string"),
        ("config_cls: 3", "config_cls: must be the dotted path of a PipelineConfig class, not 3"),
        ("config_cls: nowhere.Config", "config_cls: 'nowhere.Config': there is no module 'nowhere'"),
        ("config_cls: tests.config.family.SpeechPipelinConfig", "did you mean 'SpeechPipelineConfig'?"),
        ("config_cls: os.getcwd", "config_cls: 'os.getcwd' is not a subclass of PipelineConfig"),
        ("config_cls: collections.OrderedDict", "is not a subclass of PipelineConfig"),
        ("config_cls: tests.config.family.SpeechPipelineConfig", "model_path: is required"),
        ("config_cls: tests.config.family.SpeechPipelineConfig\nmodel_path: a\nx: 1", "x: unknown key"),
    ],
)
def test_files_that_cannot_be_used(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        parse_pipeline(text, "here")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read: .*No such file"):
        load_pipeline(tmp_path / "missing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(ConfigError, match=r"latin\.yaml: cannot be read: it is no text in UTF-8 \(line 1\)"):
        load_pipeline(tmp_path / "latin.yaml")
    (tmp_path / "huge.yaml").write_text("".join(f"key{i}: 1\n" for i in range(100_000)))
    with pytest.raises(ConfigError, match=r"huge\.yaml: is no pipeline: it has more than 256 KiB"):
        load_pipeline(tmp_path / "huge.yaml")


def test_a_file_without_a_class_is_a_plain_pipeline() -> None:
    read = parse_pipeline(
        "model_path: org/a\nstages:\n- {name: only, process: p, factory: pkg.make, terminal: true}", "text"
    )
    assert read == PipelineConfig(
        model_path="org/a", stages=[StageConfig(name="only", process="p", factory="pkg.make", terminal=True)]
    )
