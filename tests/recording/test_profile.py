"""Torch's profiler in the stages of a real server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omni_python.cli import main
from omni_python.client import OmniClient
from omni_python.serve.triton_server import TritonServer


@contextmanager
def asking(server: TritonServer) -> Iterator[None]:
    """Spoken requests one after the other."""
    done = threading.Event()

    def ask() -> None:
        with OmniClient(server.grpc_url) as client:
            while not done.is_set():
                client.chat("Hello.", sampling={"max_tokens": 6, "talker": {"max_tokens": 10}})

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def profile(server: TritonServer, out: Path, *arguments: str) -> int:
    where = ["--server-pid", str(server.process.pid), "--out", str(out)]
    if "--pipeline" not in arguments:
        where += ["--pipeline", "qwen3_omni"]
    return main(["profile", *where, *arguments])


def operations(trace: Path) -> int:
    """Those of torch in it."""
    events = json.loads(trace.read_bytes())["traceEvents"]
    return sum(str(event.get("name", "")).startswith("aten::") for event in events)


def test_each_process_writes_a_trace(
    tiny_server: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seconds in (1.5, 4.0, 8.0):  # longer ones where the machine paused meanwhile
        out = tmp_path / f"{seconds}"
        with asking(tiny_server):
            status = profile(tiny_server, out, "--stages", "thinker,talker_ar", "--seconds", str(seconds))
        told = capsys.readouterr()
        assert status == 0, told.err
        files = sorted(out.iterdir())
        assert sorted(told.out.split()) == [str(path) for path in files]
        assert [path.name.split(".")[:3] for path in files] == [
            ["qwen3_omni", "speech", "r0"],
            ["qwen3_omni", "thinker", "r0"],
        ]
        seen = {path.name: operations(path) for path in files}
        if min(seen.values()) > 100:
            break
    assert min(seen.values()) > 100, seen


def test_one_profile_at_a_time_and_an_early_end(
    tiny_server: TritonServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first: list[int] = []
    threading.Thread(
        target=lambda: first.append(profile(tiny_server, tmp_path, "--stages", "decode", "--seconds", "3"))
    ).start()
    end = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    assert profile(tiny_server, tmp_path, "--stages", "decode", "--seconds", "1") == 1
    assert "a profile is running already" in capfd.readouterr().err
    while not first and time.monotonic() < end:
        time.sleep(0.05)
    assert first == [0]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stages", "thinker,vocoder"], "no stage 'vocoder'; the stages are preprocessing, "),
        (["--seconds", "0"], "more than 0 and at most 60 seconds"),
        (["--seconds", "1e9"], "more than 0 and at most 60 seconds"),
        (["--pipeline", "other"], "choose one of the server's pipelines: --pipeline qwen3_omni or qwen3_omni_text"),
        # More than the kernel's greatest; init can be taken for one, where a server was killed while its stubs started.
        (["--server-pid", "5000000"], "no running server with process id 5000000"),
    ],
)
def test_wrong_wishes_are_refused(
    tiny_server: TritonServer,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert profile(tiny_server, tmp_path, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_told(
    tiny_server: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *args, **kwargs: None)  # so that the server finds no folder
    assert profile(tiny_server, tmp_path / "gone", "--stages", "thinker", "--seconds", "1") == 1
    assert f"cannot write to {tmp_path / 'gone'}: No such file or directory" in capsys.readouterr().err
