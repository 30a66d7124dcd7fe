"""What is made of a request's times, against a player that is simulated sample by sample."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from omni_python.bench.generator import LoadResult
from omni_python.bench.load import ClosedLoop, OpenLoop, Plan
from omni_python.bench.record import Piece, RequestRecord
from omni_python.bench.slo import is_good, parse_objectives
from omni_python.bench.summary import Spread, Summary, summarize
from omni_python.bench.usage import GENERATOR, UsageSampler, process_name
from omni_python.proto.errors import InvalidArgument

TICK = 0.001


def record(**fields: object) -> RequestRecord:
    given: dict[str, object] = {"load": "x", "index": 0, "question": 0, "counted": True, "due": 0.0, "sent": 1.0}
    return RequestRecord(**{**given, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_underrun_is_what_a_player_would_hear(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    times = np.cumsum(rng.integers(1, 300, count))
    lengths = rng.integers(1, 300, count)
    buffered = silent = 0
    for tick in range(int(times[0]), int(times[-1])):
        buffered += int(lengths[times == tick].sum())
        silent += buffered == 0
        buffered -= buffered > 0
    pieces = [Piece(time * TICK, length * TICK) for time, length in zip(times, lengths, strict=True)]
    one = record(speech=pieces, ended=10.0)
    assert one.underrun == pytest.approx(silent * TICK, abs=1e-9)
    assert one.audio_s == pytest.approx(lengths.sum() * TICK)
    assert one.real_time_factor == pytest.approx(9.0 / (lengths.sum() * TICK))
    assert one.gaps == pytest.approx(list(np.diff(times) * TICK))


def test_times_count_from_sending() -> None:
    one = record(texts=[1.25, 1.5], speech=[Piece(2.0, 0.1)], ended=2.5)
    assert (one.first_text, one.first_audio, one.total) == (0.25, 1.0, 1.5)
    bare = record(texts=[1.25, 1.5, 2.5], ended=2.5)
    assert (bare.first_audio, bare.underrun, bare.real_time_factor, bare.longest_gap) == (None, None, None, 1.0)


def test_refused_is_unavailable_before_anything_came() -> None:
    assert record(error="Unavailable").refused
    assert not record(error="Unavailable", texts=[1.5]).refused
    assert not record(error="InvalidRequest").refused


def test_objectives() -> None:
    fast = record(texts=[1.1], speech=[Piece(1.3, 4.0)], ended=2.0)
    assert is_good(fast, parse_objectives(["ttft=100.1ms,ttfa=0.31s", "rtf=0.25", "underrun=0ms", "total=1s"]))
    assert not is_good(fast, parse_objectives(["ttft=99ms"]))
    assert not is_good(fast, parse_objectives(["rtf=0.24"]))
    assert not is_good(record(texts=[1.1], ended=2.0), parse_objectives(["ttfa=10s"])), "there is no speech"
    assert not is_good(record(error="Timeout", texts=[1.1]), parse_objectives(["ttft=1s"]))


@pytest.mark.parametrize("text", ["ttfa", "ttfa=", "ttfa=300", "rtf=1s", "latency=1s", "ttfa=-1s", "ttfa=1s;rtf=1"])
def test_other_objectives_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="for example ttfa=300ms"):
        parse_objectives([text])


def test_arrivals_are_poisson() -> None:
    from scipy.stats import kstest

    due = OpenLoop(50.0).arrivals(warm_up=100, seconds=60.0, count=None, seed=5)
    assert due == OpenLoop(50.0).arrivals(warm_up=100, seconds=60.0, count=None, seed=5)
    assert due[:100] != OpenLoop(50.0).arrivals(warm_up=100, seconds=60.0, count=None, seed=4)[:100]
    assert 0 < due[-1] - due[100] <= 60.0
    assert kstest(np.diff(due), "expon", args=(0, 1 / 50)).pvalue > 0.01
    assert len(OpenLoop(2.0).arrivals(warm_up=3, seconds=1.0, count=7, seed=0)) == 10


def test_spread() -> None:
    spread = Spread.of([None, 3.0, 1.0, 2.0])
    assert spread is not None
    assert (spread.p50, spread.p95, spread.p99, spread.max) == pytest.approx((2.0, 2.9, 2.98, 3.0))
    assert Spread.of([None]) is None


def test_stubs_are_called_by_their_model() -> None:
    stub = ["/x/python/triton_python_backend_stub", "/models/qwen3_omni_front/1/model.py", "region"]
    stub += ["1048576", "1048576", "17", "/x/python", "336", "qwen3_omni_front_0_0", "/x/omni_python"]
    assert process_name(stub) == "qwen3_omni_front"
    assert process_name(["/opt/tritonserver/bin/tritonserver", "--id=x"]) == "tritonserver"
    assert process_name([]) == "?"


BURN = """
import subprocess, sys, time
seconds, *others = sys.argv[2:]
sys.stdin.readline()
if others:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], "", *others], stdin=subprocess.PIPE)
    child.stdin.write(b"go\\n")
    child.stdin.flush()
end = time.process_time() + float(seconds)
while time.process_time() < end:
    pass
print("burnt", flush=True)
sys.stdin.read()
if others:
    child.communicate()
"""


def test_cpu_time_is_what_processes_burn() -> None:
    """A process that burns half a second, and its child a quarter."""
    with subprocess.Popen(
        [sys.executable, "-c", BURN, BURN, "0.5", "0.25"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        start = time.monotonic()
        with UsageSampler(psutil.Process(parent.pid), [psutil.Process().pid], 600.0) as usage:
            parent.stdin.write("go\n")
            parent.stdin.flush()
            assert [parent.stdout.readline(), parent.stdout.readline()] == ["burnt\n"] * 2
        used = usage.cpu_seconds(start - 1, time.monotonic() + 1)
        parent.stdin.close()
    child = next(name for name in used if name.startswith("python"))
    assert list(used) == ["tritonserver", child, GENERATOR]
    # Beside them, the start of two Pythons.
    assert 0.45 <= used["tritonserver"] <= 0.8 and 0.2 <= used[child] <= 0.5
    assert 0 <= used[GENERATOR] <= 0.5


def summary_of(records: list[RequestRecord], since: float, seconds: float, requests: int | None = None) -> Summary:
    """Of a closed loop of four, whose server used 8 ms of CPU for each second of each request."""
    usage = UsageSampler(None, [])
    for moment in np.arange(0, 30, 0.01):
        usage._times.append(moment)
        usage._cpu.append({"tritonserver": 0.008 * sum(min(max(0.0, moment - r.sent), r.total) for r in records)})
        usage._machine.append((0.0, moment))
        usage._gpu_samples.append([])
    result = LoadResult(ClosedLoop(4), records, 0.0, since, [], False)
    return summarize(result, Plan(seconds=seconds, requests=requests), (), usage, 1)


@pytest.mark.parametrize("requests", [None, 32])
@pytest.mark.parametrize("seed", range(5))
def test_a_requests_cost_does_not_depend_on_where_counting_begins(seed: int, requests: int | None) -> None:
    """Four clients that ask again and again and wait 2 s each time; counting begins amid their requests, and ends
    amid them or with the last one."""
    rng = np.random.default_rng(seed)
    free, records = list(rng.uniform(0, 0.5, 4)), []
    for index in range(4 + 32):
        sent = min(free)
        free[free.index(sent)] = sent + 2.0
        records.append(record(index=index, sent=sent, ended=sent + 2.0, counted=index >= 4))
    since = records[4].sent
    made = summary_of(records, since, rng.uniform(4, 12), requests)
    assert made.cpu_ms["tritonserver"] == pytest.approx(16.0, rel=0.005)
