"""`omni serve`: draining, deaths of the server and of itself, exit statuses."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from omni_python.client import Answer, OmniClient, OmniClientError
from omni_python.config.compile import compile_pipeline
from omni_python.config.parts import LimitsConfig
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.serve.leftovers import remove_leftover_regions
from tests.e2e import metrics
from tests.faults.serving import Serving
from tests.waiting import wait_given_up, wait_until

PIPELINE = "noop_line"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    compile_pipeline(NoopLinePipelineConfig(), tmp_path / "models")
    return tmp_path / "models"


def ask(serving: Serving, **sampling: object) -> Answer:
    with OmniClient(serving.grpc_url, PIPELINE) as client:
        return client.chat("x", sampling=sampling)


def is_refusing(serving: Serving) -> bool:
    """Whether requests are told that the server is shutting down."""
    try:
        ask(serving, timeout_ms=500)
    except OmniClientError as error:
        return "shutting down" in str(error)
    return False


def wait_served(serving: Serving, timeout: float = 60.0) -> None:
    end = time.monotonic() + timeout
    while True:
        try:
            ask(serving, timeout_ms=2000)
            return
        except OmniClientError:
            assert time.monotonic() < end, serving.said()[-3000:]
            time.sleep(0.2)


def wait_asked(serving: Serving, count: int = 1) -> None:
    """Until so many requests are in flight."""
    end = time.monotonic() + 20
    while metrics.in_flight(serving, PIPELINE) < count:  # type: ignore[arg-type]
        assert time.monotonic() < end, serving.said()[-3000:]
        time.sleep(0.1)


def wait_measured(serving: Serving) -> None:
    """Until each process has written all of its metrics, those of a request that has ended among them."""

    def measured() -> bool:
        ran = [metrics.read(serving, "omni_stage_run_seconds_count", stage=stage) for stage in "abc"]  # type: ignore[arg-type]
        return all(ran) and metrics.read(serving, "omni_request_duration_seconds_count") > 0  # type: ignore[arg-type]

    wait_until(measured, 20, 0.1)
    time.sleep(0.3)


def regions_of(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"omni_{pid}_*"))


def test_sigterm_lets_requests_end_and_refuses_new_ones(repository: Path, tmp_path: Path) -> None:
    with Serving(repository, tmp_path / "log") as serving:
        family = serving.family()
        answers: list[str] = []
        asking = threading.Thread(target=lambda: answers.append(ask(serving, delay=6.0, nbytes=3).text))
        asking.start()
        wait_asked(serving)
        serving.process.send_signal(signal.SIGTERM)
        serving.wait_said("letting requests in flight end", 10)
        wait_until(lambda: is_refusing(serving), 20, 0.1)
        asking.join(30)
        assert answers == ['{"nbytes":3,"last":2}']
        assert serving.process.wait(60) == 0
        assert "omni serve: stopped" in serving.said()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive and not regions_of(serving.process.pid)


def test_the_drain_time_is_kept_and_its_end_is_told(repository: Path, tmp_path: Path) -> None:
    with Serving(repository, tmp_path / "log", ("--drain-seconds", "1")) as serving:
        failed: list[str] = []

        def asks() -> None:
            try:
                ask(serving, delay=30.0)
            except OmniClientError as error:
                failed.append(str(error))

        asking = threading.Thread(target=asks)
        asking.start()
        wait_asked(serving)
        assert serving.stop() == 4
        assert "1 requests had not ended" in serving.said()
        asking.join(30)
        assert "the time for requests to end is over" in failed[0]


def test_a_second_signal_stops_at_once(repository: Path, tmp_path: Path) -> None:
    with Serving(repository, tmp_path / "log") as serving:
        family = serving.family()

        def asks() -> None:
            with pytest.raises(OmniClientError):
                ask(serving, delay=60.0)

        asking = threading.Thread(target=asks)
        asking.start()
        wait_asked(serving)
        serving.process.send_signal(signal.SIGINT)
        serving.wait_said("letting requests in flight end", 10)
        assert serving.stop(signal.SIGTERM, timeout=15) == 128 + signal.SIGTERM
        asking.join(30)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive and not regions_of(serving.process.pid)


def test_a_killed_server_comes_back_on_the_same_ports_beside_another_one(repository: Path, tmp_path: Path) -> None:
    with Serving(repository, tmp_path / "one") as one, Serving(repository, tmp_path / "two") as two:
        other = {process.pid for process in two.family()}
        one.server().kill()
        ask(two, nbytes=5)
        one.wait_said("omni serve: ready", 100, count=2)
        wait_served(one)
        assert "tritonserver died (SIGKILL)" in one.said()
        ask(two, nbytes=5)
        assert {process.pid for process in two.family()} == other
        assert len(one.directories()) == 1, "the killed server's directory is removed by its successor"


def replacement_that_hangs(serving: Serving, victim: str, declaration: Path) -> int:
    """Kill a model's process, and let its successor wait for ever for the end of its pipeline's declaration, which for
    a while is a pipe. Returns the pipe's other end."""
    kept = declaration.rename(declaration.with_suffix(".kept"))
    os.mkfifo(declaration)
    serving.stub(victim).kill()
    end = time.monotonic() + 60
    while True:
        try:
            writer = os.open(declaration, os.O_WRONLY | os.O_NONBLOCK)  # refused as long as nobody reads
            break
        except OSError:
            assert time.monotonic() < end, serving.said()[-3000:]
            time.sleep(0.1)
    kept.rename(declaration)
    return writer


def test_a_load_that_never_ends_is_ended_with_its_server(repository: Path, tmp_path: Path) -> None:
    compile_pipeline(NoopLinePipelineConfig(limits=LimitsConfig(reload_s=2.0)), repository)
    declaration = repository / PIPELINE / "1" / "pipeline.yaml"
    with Serving(repository, tmp_path / "log") as serving:
        for starts, victim in ((2, f"{PIPELINE}_b"), (3, PIPELINE)):
            pipe = replacement_that_hangs(serving, victim, declaration)
            serving.wait_said("omni serve: ready", 100, count=starts)
            os.close(pipe)
            wait_served(serving)
            said = rf"tritonserver has not loaded {victim} again within \d+ s.*, and is killed"
            assert re.search(said, serving.said())


def test_a_process_that_stalls_while_it_is_loaded_again_is_loaded_once_more(repository: Path, tmp_path: Path) -> None:
    """Triton gives it up without a word, and would wait for its end for ever."""
    victim = f"{PIPELINE}_b"
    declaration = repository / PIPELINE / "1" / "pipeline.yaml"
    with Serving(repository, tmp_path / "log") as serving:
        pipe = replacement_that_hangs(serving, victim, declaration)
        stalling = serving.stub(victim)
        stalling.suspend()
        wait_given_up(stalling)
        stalling.resume()
        os.write(pipe, declaration.read_bytes())
        os.close(pipe)
        serving.wait_said(f"tritonserver gave up {victim}_0_0 while it started; ending it", 30)
        wait_served(serving)
        assert serving.stub(victim) != stalling
        assert serving.said().count("omni serve: ready") == 1, "the server went on"


def test_a_killed_supervisor_takes_its_server_along_and_another_follows(repository: Path, tmp_path: Path) -> None:
    with Serving(repository, tmp_path / "log") as killed:
        ask(killed)
        wait_measured(killed)  # a process that is making its metrics would wait for the dead server: see the next test
        family = killed.family()
        killed.process.kill()
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not [process.cmdline() for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    with Serving(repository, tmp_path / "again", ports=killed.ports) as serving:
        ask(serving)
        assert not regions_of(killed.process.pid)


@pytest.mark.alone  # any server that starts ends it
def test_a_process_that_outlived_its_killed_server_is_ended(repository: Path, tmp_path: Path) -> None:
    """Stopped, it cannot notice by itself that its server is gone."""
    with Serving(repository, tmp_path / "log") as killed:
        stub = killed.stub("noop_line_c")
        others = [process for process in killed.family() if process != stub]
        stub.suspend()
        killed.process.kill()
        psutil.wait_procs(others, timeout=20)
        assert stub.is_running()
    with Serving(repository, tmp_path / "again", ports=killed.ports) as serving:
        _, alive = psutil.wait_procs([stub], timeout=20)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
        assert "ended the process of" in serving.said()
        ask(serving)


@pytest.mark.alone  # 0.3 s have to be enough for Triton to have handed the requests over, 3 s for all to be suspended
def test_a_machine_that_pauses_loses_nothing(repository: Path, tmp_path: Path) -> None:
    """What watches the others stands still along with them. It pauses while Triton hands no request over: 24.10 takes a
    stub that it then hears nothing of for a second for dead, and crashes once that answers all the same."""
    with Serving(repository, tmp_path / "log") as serving:
        family = serving.family()
        with ThreadPoolExecutor(3) as clients:
            answers = [clients.submit(ask, serving, delay=3.0, nbytes=1)]
            wait_asked(serving)
            answers += [clients.submit(ask, serving, nbytes=number) for number in (2, 3)]  # they wait for the first
            wait_asked(serving, 3)
            time.sleep(0.3)
            every = [psutil.Process(serving.process.pid), *family]
            for process in every:
                process.suspend()
            time.sleep(4)
            for process in random.sample(every, len(every)):
                process.resume()
            told = [f'{{"nbytes":{number},"last":{number - 1}}}' for number in range(1, 4)]
            assert [answer.result().text for answer in answers] == told
        assert serving.family() == family


def test_an_orchestrator_that_keeps_dying_is_given_up(repository: Path, tmp_path: Path) -> None:
    with Serving(repository, tmp_path / "log", ("--max-deaths", "1")) as serving:
        serving.stub(PIPELINE).kill()
        wait_served(serving)
        serving.stub(PIPELINE).kill()
        assert serving.process.wait(60) == 3
        assert "the orchestrator of noop_line died 2 times within 300 s and is not loaded again" in serving.said()


def test_what_cannot_start_is_said(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "omni_python.cli", "serve", "--model-repository"]
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        ports = ["--http-port", port, "--grpc-port", "0", "--metrics-port", "0"]
        done = subprocess.run([*command, str(repository), *ports], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port} for HTTP" in done.stderr
    done = subprocess.run([*command, str(tmp_path / "nowhere")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "there is no model repository" in done.stderr


@pytest.mark.alone  # any server that starts removes them
def test_only_regions_of_servers_that_are_gone_are_removed() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = Path(f"/dev/shm/omni_{gone.pid}_0a1b2c3d_region")
    mine = Path(f"/dev/shm/omni_{psutil.Process().pid}_0a1b2c3d_region")
    foreign = Path(f"/dev/shm/omni_{gone.pid}_other")
    try:
        for path in (left, mine, foreign):
            path.write_bytes(b"x")
        assert left.name in remove_leftover_regions()
        assert (left.exists(), mine.exists(), foreign.exists()) == (False, True, True)
    finally:
        for path in (left, mine, foreign):
            path.unlink(missing_ok=True)
