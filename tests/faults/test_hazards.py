"""Known hazards of Triton's Python backend: each has a guard, and a test that fails without it.

Elsewhere: the folder that a stub runs in cannot replace the backend's `model` (tests/serve/test_triton_server.py),
numpy 2 is refused (tests/serve/test_environment.py), a client that leaves before the first chunk is noticed, and nobody
asks for its presence after the last response (tests/e2e/test_cancel.py).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omni_python.client import OmniClient, OmniClientError
from omni_python.serve.environment import ServerSetupError
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.waiting import wait_until


def test_an_error_after_the_first_response_reaches_the_client(noop_server: TritonServer) -> None:
    """A streamed answer begins with an empty response, so every later error is a second one."""
    with OmniClient(noop_server.grpc_url, "noop_line") as client:
        with pytest.raises(OmniClientError, match="stage c fails, as asked"):
            list(client.stream("x", sampling={"fail_stage": "c"}))
        with pytest.raises(OmniClientError, match="stage b fails, as asked"):
            client.chat("x", sampling={"fail_stage": "b"})


def test_requests_in_flight_use_up_no_threads_of_the_stub(noop_server: TritonServer) -> None:
    """A stub sends responses on 32 threads, and what waits on one of them holds it: 64 requests that wait in a stage
    must not keep another one from being answered."""
    with OmniClient(noop_server.grpc_url, "noop_line") as client, ThreadPoolExecutor(64) as pool:
        waiting = [pool.submit(client.chat, "x", sampling={"delay": 0.1}) for _ in range(64)]
        wait_until(lambda: sum(asked.running() or asked.done() for asked in waiting) >= 60)
        with pytest.raises(OmniClientError, match="unknown field"):
            client.chat("x", sampling={"bogus": 1})
        assert sum(asked.done() for asked in waiting) < 40, "it was answered only after the others"
        assert {asked.result(30).text for asked in waiting} == {'{"nbytes":0,"last":0}'}


def test_metrics_are_written_by_one_thread_of_one_module() -> None:
    """Updates from several threads crash tritonserver; only the writer knows Triton's metrics at all."""
    import omni_python

    root = Path(omni_python.__file__ or "").parent
    users = {str(p.relative_to(root)) for p in root.rglob("*.py") if "MetricFamily" in p.read_text()}
    assert users == {"glue/metrics.py"}
    assert (root / "glue" / "metrics.py").read_text().count("Thread(") == 1


def test_shared_memory_that_is_too_small_is_said_at_the_start(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").touch()
    options = ServerOptions(model_repository=tmp_path)
    options.check_shared_memory(free=12 << 20)
    with pytest.raises(ServerSetupError, match="has 11 MiB free, and 3 models need 12: make it larger"):
        options.check_shared_memory(free=11 << 20)
