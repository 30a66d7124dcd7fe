"""Large inputs in memory that client and server share, with a real tritonserver."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor

from omni_python.client import AsyncOmniClient, InvalidRequest, NotSupported, OmniClient, RequestFailed, _regions
from omni_python.client._regions import SHARED_FROM_BYTES, SharedMemory, SharedTensor, SystemRegion
from omni_python.serve.triton_server import TritonServer

LONG = {"chunks": 200_000, "chunk_bytes": 8}
KINDS = [
    "system",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: pytest -m gpu")],
    ),
]


@pytest.fixture
def nothing_left(noop_server: TritonServer) -> Iterator[None]:
    """The server holds no region afterwards, and /dev/shm has none of this process's."""
    yield
    assert regions(noop_server) == []
    assert list(Path("/dev/shm").glob(f"omni_client_{os.getpid()}_*")) == []


def regions(server: TritonServer) -> list[str]:
    with grpc.insecure_channel(server.grpc_url, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        system = stub.SystemSharedMemoryStatus(service_pb2.SystemSharedMemoryStatusRequest())
        cuda = stub.CudaSharedMemoryStatus(service_pb2.CudaSharedMemoryStatusRequest())
        return [*system.regions, *cuda.regions]


def large() -> bytes:
    return os.urandom(3 * SHARED_FROM_BYTES + 7)


def test_region_holds_what_tritonclient_would_send() -> None:
    rng = np.random.default_rng()
    inputs: dict[str, np.ndarray] = {
        "videos": np.array([rng.bytes(2 << 20), b"", rng.bytes(5)], np.object_),
        "stream": np.array([True]),
        "images": np.array([rng.bytes(100)], np.object_),
        "audio": rng.standard_normal(300_001).astype(np.float32),
    }
    tensors, region = _regions.shared(inputs, "system")
    assert isinstance(region, SystemRegion)
    try:
        content = (Path("/dev/shm") / region.name).read_bytes()
    finally:
        region.close()
    videos, audio = tensors["videos"], tensors["audio"]
    assert isinstance(videos, SharedTensor) and (videos.datatype, videos.shape) == ("BYTES", (3,))
    assert content[videos.offset :][: videos.nbytes] == serialize_byte_tensor(inputs["videos"]).item()
    assert isinstance(audio, SharedTensor) and (audio.datatype, audio.shape) == ("FP32", (300_001,))
    np.testing.assert_array_equal(np.frombuffer(content[audio.offset :][: audio.nbytes], np.float32), inputs["audio"])
    assert len(content) == videos.nbytes + audio.nbytes
    assert all(tensors[name] is inputs[name] for name in ("stream", "images"))
    assert not (Path("/dev/shm") / region.name).exists()


@pytest.mark.parametrize("kind", KINDS)
def test_server_reads_it(noop_server: TritonServer, nothing_left: None, kind: SharedMemory) -> None:
    """A no-op pipeline does not look at media, so its complaints tell what it got."""
    samples = np.random.default_rng().uniform(-1, 1, 1 << 20).astype(np.float32)
    with OmniClient(noop_server.grpc_url, "noop_line", shared_memory=kind) as client:
        answer = client.chat("x", videos=[large(), b"abc"], audio=samples, audio_sample_rate=16_000)
        assert answer.finished.finish_reason == "stop"
        with pytest.raises(InvalidRequest, match=f"^the prompt has {(4 << 20) + 6} bytes of text"):
            client.chat("x" * (4 << 20) + "üüü")
        with pytest.raises(InvalidRequest, match="^videos: holds the content of files, not addresses"):
            client.chat(videos=[large(), b"http://127.0.0.1/film"])
        samples[-1] = np.nan
        with pytest.raises(InvalidRequest, match="^audio: must hold at least one sample, all finite"):
            client.chat(audio=samples, audio_sample_rate=16_000)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_after_failures_and_leaving(
    noop_server: TritonServer, nothing_left: None, kind: SharedMemory
) -> None:
    with OmniClient(noop_server.grpc_url, "noop_line", shared_memory=kind) as client:
        for _ in range(20):
            with pytest.raises(RequestFailed, match="stage b fails"):
                client.chat("x", videos=[large()], sampling={"fail_stage": "b"})
    with OmniClient(noop_server.grpc_url, "noop_forward", shared_memory=kind) as client:
        for _ in range(5):
            for _ in client.stream("x", videos=[large()], sampling=LONG):
                assert len(regions(noop_server)) == 1
                break
        events = client.stream("x", videos=[large()], sampling=LONG)
        next(events)
    events.close()


def test_nothing_is_left_after_cancelling_at_any_time(noop_server: TritonServer, nothing_left: None) -> None:
    video = large()

    async def main() -> None:
        async with AsyncOmniClient(noop_server.grpc_url, "noop_forward", shared_memory="system") as client:
            for step in range(20):
                task = asyncio.ensure_future(client.chat("x", videos=[video], sampling=LONG))
                await asyncio.sleep(step / 500)
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()  # an impatient caller
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await client.chat("x", videos=[video])).text == '{"chunks":0}'
            await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))

    asyncio.run(main())


def test_a_killed_client_leaves_no_file(noop_server: TritonServer) -> None:
    script = f"""if True:
        from omni_python.client import OmniClient
        with OmniClient("{noop_server.grpc_url}", "noop_forward", shared_memory="system") as client:
            for _ in client.stream("x", videos=[bytes(1 << 21)], sampling={LONG}):
                print("running", flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGKILL)
    assert list(Path("/dev/shm").glob(f"omni_client_{process.pid}_*")) == []
    # The server still holds what nobody else frees, for as long as it reads it.
    with grpc.insecure_channel(noop_server.grpc_url, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name in regions(noop_server):
            for wait in _regions.waits():
                try:
                    stub.SystemSharedMemoryUnregister(service_pb2.SystemSharedMemoryUnregisterRequest(name=name))
                    break
                except grpc.RpcError:
                    time.sleep(wait)


def test_a_server_elsewhere_is_refused(
    noop_server: TritonServer, nothing_left: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What makes a host another one: its /dev/shm is not ours."""
    monkeypatch.setattr(_regions, "_FOLDER", tmp_path)
    with OmniClient(noop_server.grpc_url, "noop_line", shared_memory="system") as client:
        with pytest.raises(NotSupported, match="cannot open this machine's shared memory: .* leave shared_memory out"):
            client.chat("x", videos=[large()])
        assert client.chat("x", videos=[b"small"]).finished.finish_reason == "stop"
    assert list(tmp_path.iterdir()) == []


def test_full_memory_is_refused(noop_server: TritonServer, nothing_left: None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with OmniClient(noop_server.grpc_url, "noop_line", shared_memory="system") as client:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        try:
            with pytest.raises(NotSupported, match="^/dev/shm has no room for the inputs"):
                client.chat("x", videos=[large()])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU, such as CI's")
def test_no_gpu_is_refused(noop_server: TritonServer) -> None:
    with (
        OmniClient(noop_server.grpc_url, "noop_line", shared_memory="cuda") as client,
        pytest.raises(NotSupported, match='shared_memory="cuda" needs'),
    ):
        client.chat("x", videos=[large()])


def test_unknown_memory_is_refused() -> None:
    wrong: Any = "disk"
    for kind in (OmniClient, AsyncOmniClient):
        with pytest.raises(ValueError, match="shared_memory: 'disk' is not one of system, cuda"):
            kind("127.0.0.1:9", shared_memory=wrong)
        with pytest.raises(ValueError, match="shared_memory needs the server's gRPC service"):
            kind("http://127.0.0.1:9", shared_memory="system")
