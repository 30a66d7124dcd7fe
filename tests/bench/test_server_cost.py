"""What the benchmarks' figures rest on: clocks, turns and intervals."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from omni_python.serve.triton_server import TritonServer

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module


def test_the_clock_is_that_of_a_servers_processes(noop_server: TritonServer, script: Callable[[str], Any]) -> None:
    clock = script("server_cost").ServerClock(noop_server)
    root = psutil.Process(noop_server.process.pid)
    processes = [root, *root.children(recursive=True)]
    before = clock.seconds()
    rounded = sum(sum(process.cpu_times()[:2]) for process in processes)
    after = clock.seconds()
    assert before - 0.02 * len(processes) <= rounded <= after + 0.02 * len(processes)
    server, whole = clock.seconds([]), clock.seconds()
    lone = [clock.seconds([name]) for name in ("noop_line", "noop_forward")]
    assert 0 < server < min(lone)
    assert sum(lone) - server >= whole - 1e-6
    server, whole = clock.seconds([]), clock.seconds()
    assert sum(lone) - server <= whole + 1e-6


def test_sides_take_turns_from_either_end(script: Callable[[str], Any]) -> None:
    made, order = script("server_cost"), []

    def side(name: str) -> Any:
        order.append(name)
        return made.Cost(10, 2.0, 0.5, 0.1)

    blocks = made.in_turns({name: lambda name=name: side(name) for name in "ab"}, 2)
    assert "".join(order) == "abba" + "baab"
    assert [set(block) for block in blocks] == [{"a", "b"}] * 2
    assert {one for block in blocks for one in block.values()} == {made.Cost(20, 4.0, 1.0, 0.2)}
    assert (blocks[0]["a"].rate, blocks[0]["a"].cpu_ms) == (5.0, 50.0)


def test_an_interval_holds_the_median_as_often_as_it_says(script: Callable[[str], Any]) -> None:
    interval = script("server_cost").Interval
    rng = np.random.default_rng()
    found = [interval.of(rng.normal(1.0, 0.1, 30)) for _ in range(150)]
    assert all(one.low <= one.median <= one.high for one in found)
    assert np.mean([one.low <= 1.0 <= one.high for one in found]) > 0.85  # of 150 at 0.95: five deviations below
    assert np.median([one.high - one.low for one in found]) == pytest.approx(4 * 1.25 * 0.1 / 30**0.5, rel=0.4)


def test_lists_of_cpus(script: Callable[[str], Any]) -> None:
    cpus, usable = script("cpus"), sorted(os.sched_getaffinity(0))
    assert cpus.cpu_list(",".join(map(str, usable))) == usable
    assert cpus.cpu_list(f"{usable[0]}-{usable[0]}") == usable[:1]
    for wrong in ("x", "", str(usable[-1] + 1), "2-1-0"):
        with pytest.raises(argparse.ArgumentTypeError):
            cpus.cpu_list(wrong)
    with cpus.pinned(usable[:1]):
        assert os.sched_getaffinity(0) == {usable[0]}
    assert sorted(os.sched_getaffinity(0)) == usable
