"""A stage process whose scheduler, or whose routing, cannot go on leaves; its requests are told why at once."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omni_python.models.noop.config import NoopStreamPipelineConfig
from omni_python.pipeline.deadlines import DeadlineWatch
from omni_python.pipeline.stage import Stage
from omni_python.pipeline.stage_spec import StageSpec
from omni_python.proto.errors import Unavailable
from omni_python.proto.payload import TextOutput
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.loop import LoopScheduler
from tests.pipeline.harness import running
from tests.waiting import wait_until

LONG = 60.0
"""Seconds in which everything is to be over; the deadlines of requests are later."""

PROCESS = """
import sys
from pathlib import Path
from omni_python.models.noop.config import NoopStreamPipelineConfig
from omni_python.pipeline.build import build_stages
from omni_python.pipeline.stage_process import StageProcess
from omni_python.relay.base import RelaySettings

config, directory = NoopStreamPipelineConfig(), Path(sys.argv[1])
[(spec, scheduler)] = build_stages(config, "a", directory)

def work():
    if scheduler._streams:
        raise ValueError("nothing can be computed")
    return False

scheduler.work = work
process = StageProcess(config.resolved_name, "a", [(spec, scheduler)], directory, RelaySettings("shm", 1 << 20))
process.start()
sys.stdin.read()
"""


def test_the_process_leaves_and_its_requests_are_told_why(directory: Path) -> None:
    with running(NoopStreamPipelineConfig(), directory) as pipeline:
        here = pipeline.processes.pop("a")
        here.drain(LONG)
        here.stop()
        process = subprocess.Popen([sys.executable, "-c", PROCESS, str(directory)], stdin=subprocess.PIPE)
        try:
            wait_until(lambda: pipeline.coordinator.serves("a"), LONG)
            _, sink = pipeline.submit(2 * LONG, chunks=3)
            with pytest.raises(Unavailable, match=r"ended: its scheduler failed \(ValueError: nothing can be computed"):
                sink.wait(LONG)
            assert process.wait(LONG) == -signal.SIGKILL
        finally:
            process.kill()
            process.communicate()
        pipeline.wait_empty()


class Echo(LoopScheduler):
    def take(self, message: IncomingMessage) -> None:
        self.outbox.put(OutgoingMessage(message.request_id, "result", message.data))

    def drop(self, request_id: str) -> None: ...


class BadOutlet:
    """Does nothing, but for looking at inputs and sending errors, which fail."""

    def check_inputs(self, *arguments: object) -> None:
        raise ValueError("a bug in what looks at inputs")

    def send_failure(self, *arguments: object) -> None:
        raise ValueError("a bug in what sends errors")

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: ()


def test_a_stage_whose_routing_fails_ends_its_process() -> None:
    reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
    scheduler = Echo("echo")
    scheduler.on_broken = reasons.put
    outlet: Any = BadOutlet()
    stage = Stage(StageSpec("c", terminal=True), scheduler, outlet, DeadlineWatch(lambda *_: None))
    stage.start()
    stage.on_payload("1", "b", TextOutput("x"))
    assert "a bug in what sends errors" in reasons.get(timeout=10)
    stage.stop()
