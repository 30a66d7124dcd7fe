"""A stage process whose scheduler cannot go on leaves, and its requests are told why at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from omni_python.models.noop.config import NoopStreamPipelineConfig
from omni_python.proto.errors import Unavailable
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
