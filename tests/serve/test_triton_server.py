"""The launcher against a real tritonserver, with a small backend of the test's own."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc

from omni_python.serve import given_up
from omni_python.serve.environment import ServerSetupError, find_installation
from omni_python.serve.server_options import SHARED_MEMORY, ServerOptions
from omni_python.serve.triton_server import ServerFailed, TritonServer
from tests.waiting import wait_given_up, wait_until

BACKEND = """
import os, pathlib, signal
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        if args["model_name"] == "broken":
            raise RuntimeError("the weights are gone")
        stalled = pathlib.Path(args["model_repository"], "stalled")
        if args["model_name"] == "stalling" and not stalled.exists():
            stalled.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        import numpy, sys

        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        where = numpy.array([sys.prefix.encode(), os.getcwd().encode()], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2), pb_utils.Tensor("where", where)])
"""

CONFIG = """
backend: "doubling"
max_batch_size: 0
input [{ name: "x", data_type: TYPE_FP32, dims: [-1] }]
output [
  { name: "y", data_type: TYPE_FP32, dims: [-1] },
  { name: "where", data_type: TYPE_STRING, dims: [2] }
]
instance_group [{ kind: KIND_CPU }]
"""


def write_repository(folder: Path, *models: str) -> ServerOptions:
    """A repository of `models` on a backend of two lines, beside the Python backend of the installed server."""
    backends = folder / "backends"
    (backends / "doubling").mkdir(parents=True)
    (backends / "doubling" / "model.py").write_text(BACKEND)
    (backends / "python").symlink_to(find_installation().backend_directory / "python")
    for model in models:
        (folder / "repository" / model / "1").mkdir(parents=True)
        (folder / "repository" / model / "config.pbtxt").write_text(CONFIG)
    return ServerOptions(model_repository=folder / "repository", backend_directory=backends, exit_timeout_s=5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with TritonServer.start(write_repository(tmp_path_factory.mktemp("server"), "double"), timeout_s=60) as server:
        yield server


def infer(server: TritonServer, x: np.ndarray) -> grpc.InferResult:
    tensor = grpc.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    with grpc.InferenceServerClient(server.grpc_url) as client:
        return client.infer("double", [tensor], client_timeout=20)


def stubs(server: TritonServer) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children()


def regions(server: TritonServer) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"{server.name}_*"))


def wait_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those of `processes` that still run after a short while; one that nobody reaps is as good as gone."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        running = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not running:
            return []
        time.sleep(0.05)
    return running


def test_serves_a_python_based_backend(server: TritonServer) -> None:
    x = np.random.default_rng().standard_normal(5).astype(np.float32)
    np.testing.assert_array_equal(infer(server, x).as_numpy("y"), x * 2)


def test_stub_runs_in_this_environment_and_an_empty_folder(server: TritonServer) -> None:
    prefix, folder = infer(server, np.zeros(1, np.float32)).as_numpy("where")
    assert prefix.decode() == sys.prefix
    assert os.listdir(folder.decode()) == []


def test_listens_on_loopback_alone(server: TritonServer) -> None:
    listening = [
        c.laddr for c in psutil.Process(server.process.pid).net_connections() if c.status == psutil.CONN_LISTEN
    ]
    assert {address.port for address in listening} == {server.http_port, server.grpc_port, server.metrics_port}
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_stop_leaves_nothing(tmp_path: Path) -> None:
    server = TritonServer.start(write_repository(tmp_path, "double"), timeout_s=60)
    children, folder = stubs(server), server.log.parent
    assert children and regions(server)
    server.stop()
    assert server.process.returncode == 0
    assert wait_gone(children) == [] and regions(server) == [] and not folder.exists()
    server.stop()


def test_stop_after_the_server_was_killed_ends_its_orphans(tmp_path: Path) -> None:
    server = TritonServer.start(write_repository(tmp_path, "double"), timeout_s=60)
    children = stubs(server)
    os.kill(server.process.pid, signal.SIGKILL)
    while not server.has_exited():
        time.sleep(0.01)
    server.stop()
    assert wait_gone(children) == [] and regions(server) == []


def test_a_model_that_fails_is_named_with_its_exception(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(ServerFailed, match=r"failed to load 'broken'.*RuntimeError: the weights are gone"):
        TritonServer.start(write_repository(tmp_path, "double", "broken"), log=log, timeout_s=60)
    assert log.read_text()


def test_a_model_that_fails_beside_others_that_serve(tmp_path: Path) -> None:
    options = replace(write_repository(tmp_path, "double", "broken"), extra=("--exit-on-error=false",))
    with pytest.raises(ServerFailed, match=r"could not load broken: .*the weights are gone"):
        TritonServer.start(options, timeout_s=60)


def test_a_stub_that_stalls_while_it_starts_costs_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton gives it up without a word, and would wait for its end for ever."""
    monkeypatch.setattr(given_up, "PATIENCE", 1.5)
    options = write_repository(tmp_path, "double", "stalling")
    stalled = options.model_repository / "stalling" / "stalled"

    def let_go_on() -> None:
        wait_until(lambda: stalled.exists() and stalled.read_text(), 60, 0.05)
        stub = psutil.Process(int(stalled.read_text()))
        wait_given_up(stub)
        stub.resume()

    letting = threading.Thread(target=let_go_on)
    letting.start()
    with TritonServer.start(options, timeout_s=100) as server:
        letting.join()
        assert server.is_model_ready("stalling")
        assert int(stalled.read_text()) not in [stub.pid for stub in stubs(server)], "it was the first server's"


def test_a_missing_repository_is_said(tmp_path: Path) -> None:
    with pytest.raises(ServerSetupError, match=r"no model repository at .*nowhere"):
        TritonServer.start(ServerOptions(model_repository=tmp_path / "nowhere"))


def test_a_port_in_use_is_said(server: TritonServer, tmp_path: Path) -> None:
    options = replace(write_repository(tmp_path, "double"), http_port=server.http_port)
    with pytest.raises(ServerSetupError, match=f"127.0.0.1:{server.http_port} for HTTP: Address already in use"):
        TritonServer.launch(options)


def test_another_server_on_the_port_is_not_taken_for_ready(server: TritonServer) -> None:
    impostor = replace(server, name="another")
    with pytest.raises(ServerFailed, match=r"not ready after 0\.3 s"):
        impostor.wait_ready(timeout_s=0.3)
