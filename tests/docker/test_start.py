"""The container's own command line starts a real server, which answers the declared probes and stops when it is told.

What differs from a container: the model repository's place, the ports (free ones) and the address (loopback alone).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from tests.docker.files import SERVICES, container, document, execution, options
from tests.faults.serving import lasting_ports


@dataclass(frozen=True)
class Pod:
    """A started container. `ports` has the port here for each that it declares."""

    process: subprocess.Popen[bytes]
    ports: dict[int, int]

    def probe(self, declared: dict[str, Any]) -> bool:
        """Whether it answers a probe as the kubelet wants it: any status from 200 on below 400, within the timeout."""
        port = declared["httpGet"]["port"]
        number = next(each["containerPort"] for each in container()["ports"] if each["name"] == port)
        url = f"http://127.0.0.1:{self.ports[number]}{declared['httpGet']['path']}"
        try:
            with urllib.request.urlopen(url, timeout=declared["timeoutSeconds"]) as answer:
                return 200 <= answer.status < 400
        except OSError:  # also what is refused, and every status from 400 on
            return False


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    repository = tmp_path_factory.mktemp("models") / "repository"
    compile_pipeline(NoopLinePipelineConfig(), repository)
    given = options(container()["args"])
    declared = [int(value) for name, value in given.items() if name.endswith("-port")]
    ports = dict(zip(declared, lasting_ports(len(declared)), strict=True))
    here = {name: str(ports[int(value)]) for name, value in given.items() if name.endswith("-port")}
    here |= {"model-repository": str(repository), "host": "127.0.0.1"}
    program, *command = execution("ENTRYPOINT")
    arguments = [f"--{name}={here.get(name, value)}" for name, value in given.items()]
    home = tmp_path_factory.mktemp("home")
    process = subprocess.Popen(
        [Path(sys.executable).parent / program, *command, *arguments],
        env=os.environ | {"HOME": str(home)},
        cwd=home,
    )
    started = Pod(process, ports)
    try:
        yield started
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()


@pytest.mark.timeout(300)
def test_it_starts_within_its_startup_probe(pod: Pod) -> None:
    probe = container()["startupProbe"]
    for _ in range(min(probe["failureThreshold"], 50)):
        assert pod.process.poll() is None
        if pod.probe(probe):
            break
        time.sleep(probe["periodSeconds"])
    else:
        pytest.fail("the startup probe failed to the end")
    assert pod.probe(container()["readinessProbe"])
    assert pod.probe(container()["livenessProbe"])


def test_a_probe_with_a_wrong_path_fails(pod: Pod) -> None:
    probe = container()["readinessProbe"]
    assert not pod.probe(probe | {"httpGet": probe["httpGet"] | {"path": "/v2/health/reddy"}})


def test_the_images_health_check_is_content(pod: Pod) -> None:
    *command, url = execution("HEALTHCHECK")
    for declared, here in pod.ports.items():
        url = url.replace(f":{declared}/", f":{here}/")
    result = subprocess.run([*command, url], timeout=30, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    broken = subprocess.run([*command, url + "x"], timeout=30, capture_output=True, text=True)
    assert broken.returncode != 0


def test_prometheus_and_the_autoscaler_find_their_metric(pod: Pod) -> None:
    metrics = next(port["containerPort"] for port in container()["ports"] if port["name"] == "metrics")
    (scaled,) = document(SERVICES[0])["spec"]["predictor"]["autoScaling"]["metrics"]
    name = scaled["external"]["metric"]["query"].removeprefix("sum(").split("{")[0]
    text = urllib.request.urlopen(f"http://127.0.0.1:{pod.ports[metrics]}/metrics", timeout=10).read().decode()
    assert f"{name}{{" in text
    assert 'pipeline="noop_line"' in text


def test_openais_api_is_served(pod: Pod) -> None:
    openai = next(port["containerPort"] for port in container()["ports"] if port["name"] == "openai")
    with urllib.request.urlopen(f"http://127.0.0.1:{pod.ports[openai]}/health", timeout=10) as answer:
        assert answer.status == 200


def test_it_stops_in_its_grace_period(pod: Pod) -> None:
    """The last test of the server: it ends with status 0, since no request is in flight."""
    pod.process.send_signal(signal.SIGTERM)
    assert pod.process.wait(document(SERVICES[0])["spec"]["predictor"]["terminationGracePeriodSeconds"]) == 0
    assert not pod.probe(container()["livenessProbe"])
