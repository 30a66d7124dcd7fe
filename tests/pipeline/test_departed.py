"""What a coordinator keeps of processes whose models were unloaded: nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock, call

import numpy as np
import pytest

from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.pipeline.build import pipeline_spec
from omni_python.pipeline.members import LINGER, Members
from omni_python.proto.errors import Cancelled
from omni_python.proto.messages import GoodbyeMessage, RegisterMessage
from omni_python.proto.request import ImagePart, Message, OmniRequest
from tests.leftovers import none_kept_by_each_of
from tests.pipeline.harness import Pipeline, Sink
from tests.waiting import wait_until

ROUNDS = 4
LONG = 60.0
"""Seconds that no test waits for."""

ENTRY_PROCESS = f"""
import os, sys
from pathlib import Path
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.pipeline.build import build_stages
from omni_python.pipeline.stage_process import StageProcess
from omni_python.relay.base import RelaySettings

config, directory = NoopLinePipelineConfig(), Path(sys.argv[1])
stages = build_stages(config, "a", directory)
process = StageProcess(config.resolved_name, "a", stages, directory, RelaySettings("shm", 1 << 20))
process.start()
sys.stdin.read()
process.drain({LONG})
os._exit(0)
"""


@contextmanager
def entry_process(directory: Path) -> Iterator[None]:
    """A process of its own, from which what it holds does not come back: unloaded at the end."""
    process = subprocess.Popen([sys.executable, "-c", ENTRY_PROCESS, str(directory)], stdin=subprocess.PIPE)
    try:
        yield
        process.communicate(timeout=LONG / 2)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_nothing_is_kept_of_a_process_whose_model_was_unloaded(line: Pipeline, directory: Path) -> None:
    coordinator = line.coordinator
    endpoint = coordinator._endpoint
    line.submit()[1].wait()
    here = line.processes.pop("a")
    here.drain(LONG)
    here.stop()

    def load_and_unload() -> None:
        with entry_process(directory):
            wait_until(lambda: coordinator.serves("a"), LONG)
            entry = coordinator._registry.current("a", 0)
            assert entry is not None
            image = ImagePart(np.zeros(100_000, np.uint8))
            sampling = {"delay": LONG, "delay_stage": "a"}  # it reads its input all the time
            sink = Sink()
            request_id = coordinator.submit(OmniRequest([Message("user", [image])], sampling=sampling), sink)
            wait_until(lambda: endpoint.carrier.slots_in_use == 1)
            coordinator.abort(request_id)
            with pytest.raises(Cancelled):
                sink.wait()
        wait_until(lambda: entry.epoch not in endpoint._outlets)
        wait_until(lambda: entry.epoch not in endpoint.carrier._sites)
        wait_until(lambda: endpoint.carrier.slots_in_use == 0)

    with none_kept_by_each_of(ROUNDS):
        for _ in range(ROUNDS):
            load_and_unload()


def test_a_process_of_another_host_is_forgotten_once_it_was_told_goodbye() -> None:
    """Nobody here sees it die."""
    endpoint = Mock(epoch=1)
    endpoint.is_remote.return_value = True
    ignore: Any = Mock()
    members = Members(pipeline_spec(NoopLinePipelineConfig()), endpoint, 15.0, ignore, ignore, ignore)
    members.register(RegisterMessage(10, "a", ["a"], 0, "tcp://far:1", (0, 0)))
    endpoint.reset_mock()
    members.leave(10)
    told = [done for done in endpoint.method_calls if done != call.is_remote(ANY)]
    assert told == [call.send(10, GoodbyeMessage(1)), call.forget(10, LINGER)]
    members.close()
    members.wait(0)
