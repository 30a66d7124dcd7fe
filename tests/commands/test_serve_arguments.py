"""What `omni serve` and `omni quickstart` say of ports and numbers that cannot be, before they start anything."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from omni_python.cli import main
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopForwardPipelineConfig
from tests.faults.serving import lasting_ports


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--http-port", "65536"], "--http-port: must be at most 65535, or 0 for a free one, not 65536"),
        (["serve", "--metrics-port=-1"], "--metrics-port: must be at most 65535"),
        (["serve", "--openai-port", "8001"], "--openai-port: 8001 is that of --grpc-port; give each its own"),
        (["quickstart", "--grpc-port", "8000"], "--grpc-port: 8000 is that of --http-port"),
        (["serve", "--drain-seconds", "nan"], "--drain-seconds: must be 0 or more, not nan"),
        (["serve", "--max-deaths=-1"], "--max-deaths: must be 0 or more, not -1"),
        (["quickstart", "--model-repository", "docker"], "there is no pipeline qwen3_omni in docker; omni compile"),
        (["quickstart", "--model-path", "/none"], "--model-path: there is no folder /none; `omni checkpoint` makes"),
        (["serve", "--http-port=0", "--grpc-port=0", "--model-repository=none"], "there is no model repository at "),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) in (1, 2)
    printed = capfd.readouterr()
    assert printed.out == "" and message in printed.err and printed.err.count("\n") == 1


def test_a_server_that_cannot_start_names_the_checkpoint_that_it_lacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = NoopForwardPipelineConfig(model_path="../nowhere")
    compile_pipeline(config.changed(name="lost"), tmp_path / "repository")
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    assert main(["serve", f"--model-repository={tmp_path}/repository", *ports, "--", "--log-info=maybe"]) == 1
    told = capfd.readouterr().err.splitlines()[-1]
    assert told.startswith(f"omni serve: the checkpoint of lost is not there: {tmp_path}/nowhere; `omni checkpoint`")


def test_a_port_in_use_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compile_pipeline(NoopForwardPipelineConfig(), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--openai-port={port}"]
        assert main(["serve", f"--model-repository={tmp_path}", *ports]) == 1
    told = capfd.readouterr().err
    assert told == f"omni serve: cannot listen on 127.0.0.1:{port} for OpenAI's API: Address already in use\n"


@pytest.mark.parametrize("port", [["--http-port=0"], [], ["--openai-port=0"]])
@pytest.mark.parametrize("host", ["::1", "192.0.2.1", "nowhere.invalid", "a..b"])
def test_a_host_that_cannot_be_listened_on_is_named(
    host: str, port: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compile_pipeline(NoopForwardPipelineConfig(), tmp_path)
    numbers = zip(("http", "grpc", "metrics"), lasting_ports(3), strict=True)
    others = [f"--{name}-port={number}" for name, number in numbers]
    assert main(["serve", f"--model-repository={tmp_path}", f"--host={host}", *others, *port]) == 1
    [told] = capfd.readouterr().err.splitlines()
    assert re.match(rf"omni serve: cannot listen on (a free port of )?{host}[: ]", told)
    assert "Unknown error" not in told and "(while" not in told
    assert "; the host must be an IPv4 address of this machine such as 127.0.0.1, a name of one, or 0.0.0.0" in told
