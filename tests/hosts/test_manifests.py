"""The manifests for several hosts are ones that Kubernetes takes, and fit the pipeline that their README makes."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from omni_python.cli import main
from omni_python.commands.parser import create_parser
from omni_python.config.files import load_pipeline
from omni_python.config.resolve import resolved_model_path
from tests.docker.files import CLAIM, KSERVE, RUNTIME, container, document, options
from tests.docker.test_manifests import KUBERNETES

FOLDER = KSERVE / "hosts"
HOSTS = ("front", "think", "speech")
README = (FOLDER / "README.md").read_text("utf-8")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text("utf-8")))


def only(name: str, kind: str, of: str = "") -> dict[str, Any]:
    found = [part for part in documents(name) if part["kind"] == kind and part["metadata"]["name"].endswith(of)]
    assert len(found) == 1
    return found[0]


def pod(host: str) -> dict[str, Any]:
    spec: dict[str, Any] = only(host, "Deployment")["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the README's commands make, with the edit that it describes."""
    folder = tmp_path_factory.mktemp("hosts")
    edited = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)[0])
    places = {"thinker": "think", "talker_ar": "speech", "code2wav": "speech"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
            for line in block.splitlines():
                assert main(shlex.split(line)[1:]) == 0, line
            path = folder / "all" / "qwen3_omni" / "1" / "pipeline.yaml"
            pipeline = yaml.safe_load(path.read_text()) | edited
            for stage in pipeline["stages"]:
                if stage["name"] in places:
                    stage["host"] = places[stage["name"]]
                if stage["name"] in (*places, "image_encoder", "audio_encoder"):
                    stage["gpu"] = 0
            path.write_text(yaml.safe_dump(pipeline))
    return folder


@pytest.mark.parametrize("name", [*HOSTS, "network-policy"])
def test_kubernetes_takes_them(name: str) -> None:
    for part in documents(name):
        kubernetes_validate.validate(part, KUBERNETES, strict=True)


@pytest.mark.parametrize("host", HOSTS)
def test_hosts_are_alike_but_for_what_they_run(host: str) -> None:
    given, first = copy.deepcopy(only(host, "Deployment")), copy.deepcopy(only("think", "Deployment"))
    for deployment in (given, first):
        (run,) = deployment["spec"]["template"]["spec"]["containers"]
        run["args"] = [argument for argument in run["args"] if not argument.startswith("--openai-port")]
        run["ports"] = [port for port in run["ports"] if port["name"] != "openai"]
        del run["resources"]
    assert given == yaml.safe_load(yaml.safe_dump(first).replace("think", host))


@pytest.mark.parametrize("host", HOSTS)
def test_a_container_is_run_as_the_serving_runtimes_is(host: str) -> None:
    (run,) = pod(host)["containers"]
    there = container()
    for same in ("image", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "securityContext"):
        assert run[same] == there[same]
    given, expected = options(run["args"]), options(there["args"])
    assert given.items() - expected.items() == {("model-repository", f"/models/{host}")}
    assert expected.keys() - given.keys() == (set() if host == "front" else {"openai-port"})
    assert create_parser().parse_args(["serve", *run["args"]]).extra == []
    ports = {f"{port['name']}-port": str(port["containerPort"]) for port in run["ports"]}
    assert ports == {name: value for name, value in given.items() if name.endswith("-port")}


@pytest.mark.parametrize("host", HOSTS)
def test_prometheus_finds_a_host_as_it_finds_kserves_pods(host: str) -> None:
    runtimes = document(RUNTIME)["spec"]["annotations"]
    expected = {f"prometheus.io/{name}": runtimes[f"prometheus.kserve.io/{name}"] for name in ("port", "path")}
    annotations = only(host, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations == expected | {"prometheus.io/scrape": "true"}


def test_one_pod_at_a_time_answers_to_each_hosts_address(made: Path) -> None:
    pipeline = load_pipeline(made / "front" / "qwen3_omni" / "1" / "pipeline.yaml")
    assert set(pipeline.hosts) == set(HOSTS)
    for name, host in pipeline.hosts.items():
        deployment, service = only(name, "Deployment")["spec"], only(name, "Service", f"-{name}")
        assert service["metadata"]["name"] == host.address
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
        assert service["spec"]["selector"] == deployment["template"]["metadata"]["labels"]
        assert service["spec"]["selector"] == deployment["selector"]["matchLabels"]
        assert deployment["replicas"] == 1 and deployment["strategy"] == {"type": "Recreate"}


def test_models_and_key_are_where_the_pipeline_looks(made: Path) -> None:
    for host in HOSTS:
        pipeline = load_pipeline(made / host / "qwen3_omni" / "1" / "pipeline.yaml")
        (run,) = pod(host)["containers"]
        mounts = {mount["name"]: mount for mount in run["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod(host)["volumes"]}
        assert set(mounts) == set(volumes)
        repository = Path(options(run["args"])["model-repository"])
        assert repository.parent == Path(mounts["models"]["mountPath"]) and repository.name == host
        assert resolved_model_path(pipeline, repository) == "/models/checkpoint"
        assert mounts["models"]["subPath"] in README
        claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
        assert claim == document(CLAIM)["metadata"]["name"]

        assert pipeline.endpoints.key_file == f"{mounts['key']['mountPath']}/key"
        secret = volumes["key"]["secret"]
        assert f"secret generic {secret['secretName']} --from-file=key" in README
        assert secret["defaultMode"] == 0o440
        assert pod(host)["securityContext"]["fsGroup"] == run["securityContext"]["runAsGroup"]
    assert (made / "key").stat().st_mode & 0o077 == 0


def test_clients_reach_the_orchestrator_and_nothing_else() -> None:
    labels = {host: only(host, "Deployment")["spec"]["template"]["metadata"]["labels"] for host in HOSTS}
    service = next(part for part in documents("front") if part["metadata"]["name"] == "qwen3-omni")["spec"]
    assert service["selector"] == labels["front"]
    names = {port["name"] for port in pod("front")["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["ports"]} == names - {"metrics"}

    everyone, clients = (part["spec"] for part in documents("network-policy"))
    selected = everyone["podSelector"]["matchLabels"]
    assert all(selected.items() <= label.items() for label in labels.values())
    among, metrics = everyone["ingress"]
    assert among == {"from": [{"podSelector": {"matchLabels": selected}}]}
    assert metrics == {"ports": [{"port": "metrics"}]}
    assert clients["podSelector"]["matchLabels"] == labels["front"]
    (public,) = clients["ingress"]
    assert {port["port"] for port in public["ports"]} == names - {"metrics"}
