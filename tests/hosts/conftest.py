"""Three hosts, each with a real tritonserver and its part of the pipelines."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from omni_python.config.compile import compile_pipeline
from omni_python.config.schema import PipelineConfig
from omni_python.control.curve import make_key
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.hosts.wire import Wire, why_impossible

FRONT, THINK, SPEECH = "front", "think", "speech"
SILENCE = 6.0
_PORTS = {"noop_line": 7100, "qwen3_omni": 7200}


@dataclass
class Hosts:
    wire: Wire
    repositories: Path
    servers: dict[str, TritonServer] = field(default_factory=dict)

    def start(self, host: str, *models: str) -> None:
        """The host's server, with all of its models unless some are named."""
        options = ServerOptions(model_repository=self.repositories / host, models=models or ("*",), exit_timeout_s=5)
        with self.wire.on(host):
            self.servers[host] = TritonServer.start(options, timeout_s=100)

    def stop(self, *hosts: str) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(TritonServer.stop, [self.servers.pop(host) for host in hosts if host in self.servers]))

    def ask(self, model: str, host: str = FRONT, timeout: float = 60, **inputs: Any) -> dict[str, Any]:
        """What the pipeline answers; an error has the key `error` alone."""
        with self._connection(host, self.servers[host].http_port, timeout) as connection:
            connection.request("POST", f"/v2/models/{model}/generate", json.dumps(inputs))
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer

    def line(self, **sampling: Any) -> dict[str, Any]:
        """What `noop_line` answers."""
        answer = self.ask("noop_line", text_input="x", sampling_parameters=json.dumps(sampling))
        return answer if "error" in answer else dict(json.loads(answer["text_output"]))

    def reached(self, host: str, stage: str) -> float:
        """Requests that a stage of `noop_line` was ever given, on its host."""
        with self.wire.on(host):
            return metrics.read(self.servers[host], "omni_stage_requests_total", pipeline="noop_line", stage=stage)

    @contextmanager
    def _connection(self, host: str, port: int, timeout: float) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        with self.wire.on(host):
            connection.connect()
        try:
            yield connection
        finally:
            connection.close()


def spread(config: PipelineConfig, wire: Wire, key: Path, places: dict[str, str]) -> PipelineConfig:
    """A pipeline with the processes of `places` on their hosts, and all others beside the orchestrator."""
    name = config.resolved_name
    stages = [
        stage.model_copy(update={"host": places[stage.process_name]}) if stage.process_name in places else stage
        for stage in config.stages
    ]
    used = {FRONT, *places.values()}
    hosts = {
        host: {"address": address, "port": _PORTS[name]} for host, address in wire.addresses.items() if host in used
    }
    return config.changed(
        stages=stages,
        hosts=hosts,
        relay_backend="nixl",
        endpoints={"key_file": str(key)},
        limits={"silence_s": SILENCE, "grace_s": 20},
    )


@pytest.fixture(scope="session")
def three_hosts(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Hosts]:
    if reason := why_impossible():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    make_key(folder / "key")
    with ExitStack() as stack:
        wire = stack.enter_context(Wire([FRONT, THINK, SPEECH]))
        hosts = Hosts(wire, folder)
        pipelines = [
            (NoopLinePipelineConfig(), {"b": THINK, "c": SPEECH}),
            (Qwen3OmniSpeechPipelineConfig(model_path=str(tiny_checkpoint)), {"thinker": THINK, "speech": SPEECH}),
        ]
        for config, places in pipelines:
            placed = spread(config, wire, folder / "key", places)
            for host in placed.hosts:
                compile_pipeline(placed, folder / host, host)
        with pytest.MonkeyPatch.context() as environment:
            # These hosts are one machine, whose memory UCX would read directly.
            environment.setenv("UCX_TLS", "tcp,self")
            stack.callback(hosts.stop, *wire.addresses)
            for host in wire.addresses:
                hosts.start(host)
        yield hosts
