"""Placements on several hosts: those that cannot work are refused, and each host gets its own models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from omni_python.cli import main
from omni_python.config import ConfigError, PipelineConfig
from omni_python.config.compile import compile_pipeline
from omni_python.config.files import load_pipeline, save_pipeline
from omni_python.config.hosts import listeners
from omni_python.models.noop.config import NoopLinePipelineConfig

HOSTS: dict[str, Any] = {
    "front": {"address": "front.omni", "port": 7000},
    "think": {"address": "10.0.0.2"},
    "speech": {"address": "fd00::3", "port": 7001},
}
PLACES = {"b": "think", "c": "speech"}


def spread(places: dict[str, str] = PLACES, **changes: Any) -> PipelineConfig:
    stages = [
        stage.model_copy(update={"host": places.get(stage.name)})
        for stage in NoopLinePipelineConfig.model_fields["stages"].default
    ]
    fields = {"hosts": HOSTS, "relay_backend": "nixl", "endpoints": {"key_file": "/etc/omni/key"}, "stages": stages}
    return NoopLinePipelineConfig(**{**fields, **changes})


def problems(**changes: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        spread(**changes)
    return {problem.path: problem.message for problem in refused.value.problems}


def host_with(name: str, **changes: Any) -> dict[str, Any]:
    return {**HOSTS, name: {**HOSTS[name], **changes}}


def test_every_process_has_a_port_of_its_own() -> None:
    found = {process: listener.url for (process, _), listener in listeners(spread()).items()}
    assert found == {
        None: "tcp://front.omni:7000",
        "a": "tcp://front.omni:7001",
        "b": "tcp://10.0.0.2:7100",
        "c": "tcp://[fd00::3]:7001",
    }
    assert listeners(NoopLinePipelineConfig()) == {}


def test_replicas_have_ports_of_their_own_and_the_orchestrator_may_be_anywhere() -> None:
    a, b, c = spread({"a": "front", **PLACES}).stages
    stages = [a, b.model_copy(update={"replicas": 2}), c]
    found = listeners(spread(stages=stages, orchestrator_host="think"))
    assert {key: listener.port for key, listener in found.items() if listener.host == "think"} == {
        (None, 0): 7100,
        ("b", 0): 7101,
        ("b", 1): 7102,
    }


@pytest.mark.parametrize(
    ("path", "message", "changes"),
    [
        ("stages.b.host", "did you mean 'think'", {"places": {"b": "thinkk", "c": "speech"}}),
        ("orchestrator_host", "there is no host 'back'", {"orchestrator_host": "back"}),
        ("hosts.think", "runs nothing", {"places": {"c": "speech"}}),
        ("endpoints.key_file", "`omni key FILE`", {"endpoints": {}}),
        ("endpoints.key_file", "must be an absolute path", {"endpoints": {"key_file": "key"}}),
        ("relay_backend", "a and b are on different hosts and shared memory ends", {"relay_backend": "shm"}),
        ("relay_backend", "loopback interface; use nixl", {"relay_backend": "nccl"}),
        ("relay_backend", "listens on every interface", {"relay_backend": "mooncake"}),
        ("hosts.think.address", "is every interface", {"hosts": host_with("think", address="0.0.0.0")}),
        ("hosts.think.address", "is this host alone", {"hosts": host_with("think", address="127.0.0.1")}),
        ("hosts.think.address", "that host itself", {"hosts": host_with("think", address="localhost")}),
        ("hosts.think.address", "no address of one host", {"hosts": host_with("think", address="224.0.0.1")}),
        ("hosts.think.address", "without a port", {"hosts": host_with("think", address="tcp://x:1")}),
        ("hosts.think.address", "is required", {"hosts": {**HOSTS, "think": {}}}),
        ("hosts.think.prot", "did you mean 'port'", {"hosts": host_with("think", prot=1)}),
        ("hosts.front.port", "leaves no port", {"hosts": host_with("front", port=65535)}),
        (
            "hosts.think.port",
            "is that of a process of 'front', too",
            {"hosts": host_with("think", address="front.omni", port=7001)},
        ),
        (
            "stages.b.host",
            "a process is on one host",
            {"fused_stages": [["a", "b"]], "hosts": HOSTS},
        ),
    ],
)
def test_what_cannot_work_is_refused(path: str, message: str, changes: dict[str, Any]) -> None:
    found = problems(**changes)
    assert message in found[path]


def test_a_gpu_is_that_of_its_host() -> None:
    """The same number on two hosts is two GPUs, which share no memory."""
    stages = [stage.model_copy(update={"gpu": 0}) for stage in spread().stages]
    assert spread(stages=stages).gpu_placement == {"a": 0, "b": 0, "c": 0}
    found = problems(stages=[stage.model_copy(update={"gpu": 0, "host": None}) for stage in stages[:2]] + [stages[2]])
    assert "share GPU 0 of host 'front'" in found["stages.a.factory_args.total_gpu_memory_fraction"]


def test_each_host_gets_its_own_models_and_the_whole_pipeline(tmp_path: Path) -> None:
    config = spread()
    models = {host: _compiled(config, tmp_path / host, host) for host in config.hosts}
    assert {host: list(found) for host, found in models.items()} == {
        "front": ["noop_line", "noop_line_a"],
        "think": ["noop_line", "noop_line_b"],
        "speech": ["noop_line", "noop_line_c"],
    }
    roles = {host: found["noop_line"].parameters["omni_role"].string_value for host, found in models.items()}
    assert roles == {"front": "orchestrator", "think": "keeper", "speech": "keeper"}
    for host, found in models.items():
        assert {model.parameters["omni_host"].string_value for model in found.values()} == {host}
        assert load_pipeline(tmp_path / host / "noop_line" / "1" / "pipeline.yaml") == config


def test_compile_wants_a_host_where_there_are_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_pipeline(spread(), tmp_path / "p.yaml")
    save_pipeline(NoopLinePipelineConfig(), tmp_path / "one.yaml")
    output = ["--output", str(tmp_path / "repository")]
    for arguments, message in (
        (["p.yaml"], "choose one with --host: front, think, speech"),
        (["p.yaml", "--host", "thing"], "did you mean 'think'"),
        (["one.yaml", "--host", "think"], "leave it out"),
    ):
        assert main(["compile", str(tmp_path / arguments[0]), *arguments[1:], *output]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "repository").exists()
    assert main(["compile", str(tmp_path / "p.yaml"), "--host", "think", *output]) == 0
    assert yaml.safe_load((tmp_path / "repository/noop_line/1/pipeline.yaml").read_text())["hosts"] == HOSTS


def test_validate_shows_hosts_addresses_and_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_pipeline(spread(), tmp_path / "p.yaml")
    assert main(["validate", "--explain", str(tmp_path / "p.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "noop_line_b ─" in printed and "think: CPU" in printed
    assert "tcp://10.0.0.2:7100  b" in printed
    assert "larger tensors: nixl, hosts front and think" in printed


def _compiled(config: PipelineConfig, repository: Path, host: str) -> dict[str, ModelConfig]:
    compile_pipeline(config, repository, host)
    return {
        path.parent.name: text_format.Parse(path.read_text(), ModelConfig())
        for path in sorted(repository.glob("*/config.pbtxt"))
    }
