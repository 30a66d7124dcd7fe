"""What the Dockerfile, the compose file and the manifests say fits the tree, the package's versions, and each other."""

from __future__ import annotations

import fnmatch
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from omni_python.cli import main
from omni_python.commands import serve
from omni_python.commands.parser import create_parser
from omni_python.config.numpy_support import FIRST_RELEASE_WITH_NUMPY_2
from omni_python.glue import metric_names
from omni_python.serve.server_options import SHARED_MEMORY
from tests.docker.files import (
    CLAIM,
    COMPOSE,
    DOCKER,
    RUNTIME,
    SERVICES,
    container,
    document,
    execution,
    instructions,
    options,
)

ROOT = DOCKER.parent
PORTS = {"http": "http", "grpc": "h2c", "metrics": "metrics", "openai": "openai"}
"""The names of the server's ports by the options of `omni serve`."""

services = pytest.mark.parametrize("file", SERVICES, ids=lambda path: path.name)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def pinned() -> dict[str, str]:
    lines = (ROOT / "scripts" / "constraints.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


# -- the Dockerfile


def test_what_it_copies_is_in_the_tree_and_in_the_context() -> None:
    rules = [rule for rule in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if rule[:1] not in ("", "#")]
    assert rules[0] == "*"
    sources = [source for source, _ in _copied() if not source.startswith("/")]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(f"{source}/", f"{rule[1:]}/*") for rule in rules if rule.startswith("!")), source
    for rule in rules:
        assert not rule.startswith("!") or any(source.startswith(rule[1:]) for source in sources), f"unused: {rule}"


def test_what_comes_from_a_stage_is_made_in_it() -> None:
    for stage in ("cpu", "gpu"):
        copies = [rest.split() for name, rest in instructions(stage) if name == "COPY"]
        assert copies == [
            [f"--from=environment-{stage}", "/opt/omni", "/opt/omni"],
            ["backends/omni_python", "/opt/tritonserver/backends/omni_python"],
        ]
    assert "virtualenv --python /usr/bin/python3 /opt/omni " in _commands("environment")


@pytest.mark.parametrize("stage", ["environment-cpu", "environment-gpu"])
def test_what_it_installs_exists_and_its_versions_are_the_tested_ones(
    stage: str, project: dict[str, Any], pinned: dict[str, str]
) -> None:
    (extras,) = re.findall(r"pip install '\.\[([a-z,]+)\]'", _commands(stage))
    names = extras.split(",")
    wanted = [Requirement(text) for extra in names for text in project["optional-dependencies"][extra]]
    wanted += [Requirement(text) for text in project["dependencies"]]
    by_torch = {"cuda-bindings"}  # which brings the version of CUDA that it is built for
    for requirement in wanted:
        if requirement.name in by_torch:
            continue
        (version,) = [pinned[name] for name in pinned if name.lower() == requirement.name.lower()]
        assert version in requirement.specifier, requirement
    assert {"http", "otel", "vad"} <= set(names)
    assert "ln -s /opt/tritonserver/backends/omni_python " in _commands(stage)


def test_the_tools_that_it_installs_with_are_pinned(pinned: dict[str, str]) -> None:
    environment = " ".join(rest for name, rest in instructions("environment") if name == "ENV")
    assert "PIP_CONSTRAINT=/build/scripts/constraints.txt" in environment
    assert "PIP_BUILD_CONSTRAINT=/build/scripts/constraints.txt" in environment
    assert {"pip", "hatchling", "torch"} <= set(pinned)


def test_the_image_is_one_of_triton_that_knows_every_numpy() -> None:
    (tag,) = [rest.split("=")[1] for name, rest in instructions() if name == "ARG" and rest.startswith("TRITON_TAG=")]
    year, month = map(int, tag.removesuffix("-py3").split("."))
    assert (year, month) >= FIRST_RELEASE_WITH_NUMPY_2
    assert f"TRITON_TAG:-{tag}" in COMPOSE.read_text("utf-8")
    readme = (DOCKER / "README.md").read_text("utf-8")
    assert f"({year}.{month} by default" in readme and f"| {year}.{month} |" in readme
    bases = {rest.split(" AS ")[0] for name, rest in instructions() if name == "FROM"}
    stages = {rest.split(" AS ")[1] for name, rest in instructions() if name == "FROM"}
    assert bases - stages == {"nvcr.io/nvidia/tritonserver:${TRITON_TAG}"}


def test_its_command_exists(project: dict[str, Any]) -> None:
    program, *command = execution("ENTRYPOINT")
    assert program in project["scripts"]
    arguments = create_parser().parse_args([*command, *execution("CMD")])
    assert command == ["serve"] and arguments.drain_seconds
    assert not arguments.extra
    assert arguments.openai_port


def test_all_say_the_same_of_the_server() -> None:
    """One set of arguments and ports, but for where the models are."""
    given = options(execution("CMD"))
    assert options(container()["args"]) == given | {"model-repository": "/mnt/models/repository"}
    assert given["host"] == "0.0.0.0"

    ports = {name: int(given[f"{option}-port"]) for option, name in PORTS.items()}
    assert {port["name"]: port["containerPort"] for port in container()["ports"]} == ports
    assert next(iter(container()["ports"]))["name"] == "http"
    (exposed,) = [rest for name, rest in instructions("runtime") if name == "EXPOSE"]
    assert sorted(map(int, exposed.split())) == sorted(ports.values())
    assert document(RUNTIME)["spec"]["annotations"]["prometheus.kserve.io/port"] == str(ports["metrics"])
    assert execution("HEALTHCHECK")[-1] == f"http://127.0.0.1:{ports['http']}/v2/health/ready"

    for service in document(COMPOSE)["services"].values():
        assert service["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports.values()]
        _, place, mode = service["volumes"][0].rsplit(":", 2)
        assert mode == "ro"
        assert Path(given["model-repository"]).is_relative_to(place)


def test_all_say_the_same_of_the_user_and_of_what_is_writable() -> None:
    (user,) = [rest for name, rest in instructions("runtime") if name == "USER"]
    security = container()["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert "HOME=/tmp " in next(rest for name, rest in instructions("runtime") if name == "ENV")

    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    volumes = {volume["name"]: volume["emptyDir"] for volume in document(RUNTIME)["spec"]["volumes"]}
    assert set(mounts) == set(volumes)
    assert {mounts[name] for name, volume in volumes.items() if "medium" in volume} == {str(SHARED_MEMORY)}
    assert set(mounts.values()) == {str(SHARED_MEMORY), "/tmp"}


# -- compose, KServe


def test_compose_builds_targets_that_exist() -> None:
    stages = {rest.split(" AS ")[1] for name, rest in instructions() if name == "FROM"}
    arguments = {rest.split("=")[0] for name, rest in instructions() if name == "ARG"}
    for service in document(COMPOSE)["services"].values():
        build = service["build"]
        assert (DOCKER / build["context"] / build["dockerfile"]).resolve() == DOCKER / "Dockerfile"
        assert build["target"] in stages
        assert service["image"].endswith(f":{build['target']}")
        assert set(build["args"]) <= arguments


def test_requests_in_flight_have_time_to_end() -> None:
    drained = int(options(execution("CMD"))["drain-seconds"]) + serve.EXIT_TIMEOUT
    for service in document(COMPOSE)["services"].values():
        assert int(service["stop_grace_period"].removesuffix("s")) > drained
    waited = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    for file in SERVICES:
        assert document(file)["spec"]["predictor"]["terminationGracePeriodSeconds"] > drained + waited


def test_a_model_has_its_time_to_load() -> None:
    startup = container()["startupProbe"]
    (rest,) = [rest for name, rest in instructions("runtime") if name == "HEALTHCHECK"]
    (period,) = re.findall(r"--start-period=(\d+)s", rest)
    assert startup["httpGet"]["path"] == container()["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert container()["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert startup["periodSeconds"] * startup["failureThreshold"] >= int(period)


@services
def test_a_service_asks_for_what_the_runtime_has(file: Path) -> None:
    runtime = document(RUNTIME)
    predictor = document(file)["spec"]["predictor"]
    model = predictor["model"]
    formats = {form["name"]: form["version"] for form in runtime["spec"]["supportedModelFormats"]}
    assert model["runtime"] == runtime["metadata"]["name"]
    assert formats[model["modelFormat"]["name"]] == model["modelFormat"]["version"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert predictor["minReplicas"] < predictor["maxReplicas"]
    assert model["resources"]["requests"]["memory"] == model["resources"]["limits"]["memory"]
    shared = next(volume["emptyDir"] for volume in runtime["spec"]["volumes"] if "medium" in volume["emptyDir"])
    assert _gibibytes(shared["sizeLimit"]) <= _gibibytes(model["resources"]["limits"]["memory"]) // 4
    scheme, place = model["storageUri"].split("://")
    assert scheme == "oci" or place.split("/")[0] == document(CLAIM)["metadata"]["name"]


@services
def test_a_service_grows_with_a_metric_that_we_have(file: Path) -> None:
    """And with that of its own pipeline, which docker/README.md compiles by that name."""
    (scaled,) = document(file)["spec"]["predictor"]["autoScaling"]["metrics"]
    found = re.fullmatch(r'sum\((\w+)\{pipeline="(\w+)"\}\)', scaled["external"]["metric"]["query"])
    assert found is not None
    gauges = {family.name for family in metric_names.FAMILIES if family.kind is metric_names.Kind.GAUGE}
    assert found[1] in gauges
    assert f"--name {found[2]} " in (DOCKER / "README.md").read_text("utf-8")


def test_between_them_services_show_both_ways_to_store_models() -> None:
    uris = [document(file)["spec"]["predictor"]["model"]["storageUri"] for file in SERVICES]
    assert {uri.split("://")[0] for uri in uris} == {"oci", "pvc"}
    gpus = [document(file)["spec"]["predictor"]["model"]["resources"]["limits"]["nvidia.com/gpu"] for file in SERVICES]
    assert "2" in gpus


def test_the_readme_names_every_file() -> None:
    text = (DOCKER / "README.md").read_text("utf-8")
    for file in [RUNTIME, CLAIM, COMPOSE, *SERVICES]:
        assert str(file.relative_to(DOCKER)) in text


def test_the_readmes_commands_make_a_model_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the place, below what is mounted, where the server looks for it; the checkpoint's place counts from there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    blocks = re.findall(r"```sh\n(.*?)```", (DOCKER / "README.md").read_text("utf-8"), re.DOTALL)
    for line in "".join(blocks).splitlines():
        program, *arguments = shlex.split(line)
        assert program == "omni"
        assert main(arguments) == 0, line
    assert Path(options(execution("CMD"))["model-repository"]).relative_to("/models") == Path("repository")
    pipeline = document(tmp_path / "models" / "repository" / "qwen3_omni" / "1" / "pipeline.yaml")
    assert pipeline["model_path"] == "../checkpoint"


def _copied() -> list[tuple[str, str]]:
    """What COPY copies, with where it lands."""
    result = []
    for name, rest in instructions():
        if name == "COPY":
            *sources, target = [word for word in shlex.split(rest) if not word.startswith("--")]
            result += [(source, target) for source in sources]
    return result


def _commands(stage: str) -> str:
    return " ; ".join(" ".join(rest.split()) for name, rest in instructions(stage) if name == "RUN")


def _gibibytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi"))
