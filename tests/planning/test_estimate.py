"""From traces and metrics to costs: what was put into them comes out."""

from __future__ import annotations

import pytest

from omni_python.planning.estimate import estimate
from omni_python.planning.observation import Answered, Level
from omni_python.planning.server_metrics import Batches, ServerMetrics, parse_metrics
from omni_python.proto.errors import Unavailable
from omni_python.proto.trace import CLIENT, ORCHESTRATOR, Hop, Lane, Span, Trace

FIXED, PER_ROW, FIRST = 0.004, 0.001, 0.010
"""Seconds of the loop `ar`, which takes 11 steps; `prepare` before it takes 2 ms, the vocoder 3 ms a window."""

METRICS = """\
# HELP omni_stage_batch_size Requests that a stage computed at once
omni_stage_batch_size_count{pipeline="it",stage="ar",replica="0"} 12
omni_stage_batch_size_sum{pipeline="it",stage="ar",replica="0"} 30
omni_stage_batch_size_bucket{pipeline="it",stage="ar",replica="0",le="1"} 3
omni_stage_batch_size_bucket{pipeline="it",stage="ar",replica="0",le="2"} 6
omni_stage_batch_size_bucket{pipeline="it",stage="ar",replica="0",le="4"} 12
omni_stage_batch_size_bucket{pipeline="it",stage="ar",replica="0",le="+Inf"} 12
omni_stage_batch_size_count{pipeline="other",stage="ar",replica="0"} 99
omni_kv_tokens_capacity{pipeline="it",stage="ar",replica="0"} 4096
omni_gpu_memory_loaded_bytes{pipeline="it",stage="ar",process="ar",replica="0",gpu="3"} 2147483648
nv_gpu_memory_total_bytes{gpu_uuid="GPU-0"} 85899345920
"""


def lane(stage: str, start: float, first: float, end: float, *spans: Span) -> Lane:
    return Lane(stage, stage, 0, "host", start, first, end, spans)


def hop(source: str, target: str, stream: bool = False) -> Hop:
    return Hop(source, target, stream, 1, 1, 0.0, 0.0, None, None)


def answered(batch: int) -> Answered:
    """A request whose 10 later steps were of `batch` at once; the vocoder's two windows came after 6 and 11 frames."""
    step = FIXED + batch * PER_ROW
    begin, first = 0.005, 0.005 + FIRST
    end = first + 10 * step
    window = first + 5 * step
    lanes = (
        lane("prepare", 0.001, 0.003, 0.003, Span("compute", 0.001, 0.003, 0.002, 1, 1)),
        lane("ar", begin, first, end, Span("compute", begin, end, end - begin, 11, batch)),
        lane(
            "vocoder",
            first,
            window + 0.003,
            end + 0.003,
            Span("wait", first, window),
            Span("compute", window, window + 0.003, 0.003, 1, 1),
            Span("wait", window + 0.003, end),
            Span("compute", end, end + 0.003, 0.003, 1, 1),
        ),
    )
    hops = (
        hop(CLIENT, ORCHESTRATOR),
        hop(ORCHESTRATOR, "prepare"),
        hop("prepare", "ar"),
        hop("ar", "vocoder", stream=True),
        hop("ar", "vocoder"),
        hop("vocoder", ORCHESTRATOR, stream=True),
    )
    trace = Trace("r", "t", "", "it", 0.0, end + 0.004, "completed", "", True, lanes, hops)
    return Answered(trace, None, window + 0.004, end + 0.005)


def level(clients: int) -> Level:
    rows, batch = 11.0 * clients, float(clients)
    done = {
        "prepare": Batches(clients, clients, clients),
        "ar": Batches(rows / batch, rows, rows * batch),
        "vocoder": Batches(2 * clients, 2 * clients, 2 * clients),
    }
    return Level(clients, [answered(clients) for _ in range(clients)], done, {}, 0.2)


def test_costs_are_those_of_the_traces() -> None:
    metrics = ServerMetrics({}, {"ar": "0"}, {"ar": 2.0 * 2**30}, frozenset({"ar"}), 80.0 * 2**30)
    costs = estimate([level(1), level(4), level(8)], metrics, "it", 16, "made up")
    assert list(costs.stages) == ["prepare", "ar", "vocoder"]
    prepare, loop, vocoder = costs.stages.values()
    assert (prepare.kind, prepare.device) == ("queue", "host")
    assert (loop.kind, loop.device, loop.after, loop.max_batch) == ("loop", "gpu0", ["prepare"], 8)
    assert (vocoder.streams_from, vocoder.needs, vocoder.steps) == ("ar", 6, 2)
    assert (loop.steps, loop.memory_gib) == (11, 2)
    assert [prepare.fixed_ms, vocoder.fixed_ms] == pytest.approx([2, 3])
    assert [loop.first_ms, loop.fixed_ms, loop.per_row_ms] == pytest.approx([10, 4, 1], rel=0.01)
    assert (vocoder.output, loop.output) == ("audio", None)
    assert (costs.devices["host"].cores, costs.devices["gpu0"].memory_gib) == (16, 80)
    assert costs.alone.first_text_ms is None and costs.alone.whole_ms == pytest.approx(10 * 5 + 15 + 5)


def test_a_process_that_had_half_a_core_computed_half_as_long() -> None:
    """The time of stages on the CPU is cut to what their process got; the rest is the host's other work."""
    metrics = ServerMetrics({}, {}, {}, frozenset({"ar"}), None)
    alone = level(1)
    took = FIRST + 10 * (FIXED + PER_ROW)
    starved = Level(1, alone.answers, alone.batches, {"it_ar": took / 2, "it_vocoder": 1.0, "tritonserver": 0.020}, 0.2)
    [_, loop, vocoder] = estimate([starved], metrics, "it", 2, "").stages.values()
    assert loop.fixed_ms == pytest.approx((FIXED + PER_ROW) / 2 * 1e3, rel=0.01)
    assert vocoder.fixed_ms == pytest.approx(3), "more CPU than its steps took makes them no longer"
    other = estimate([starved], metrics, "it", 2, "").devices["host"].other_ms
    assert other == pytest.approx((took / 2 + 1.0 + 0.020 - took / 2 - 0.006 - 0.002) * 1e3, rel=0.01)


def test_what_a_server_does_without_requests_is_told_apart() -> None:
    """10 ms of each request and 5 % of a core all the time, beside what the stages computed."""
    metrics = ServerMetrics({}, {}, {}, frozenset({"ar"}), None)
    seen = []
    for clients, seconds in ((1, 0.4), (4, 0.9), (8, 1.3)):
        computed = FIRST + 10 * (FIXED + clients * PER_ROW) + clients * 0.008
        cpu = {"tritonserver": computed + clients * 0.010 + seconds * 0.05}
        seen.append(Level(clients, level(clients).answers, level(clients).batches, cpu, seconds))
    host = estimate(seen, metrics, "it", 2, "").devices["host"]
    assert [host.other_ms, host.standing] == pytest.approx([10, 0.05], rel=0.02)


def test_stages_that_computed_at_once_had_half_of_their_gpu() -> None:
    """Both on GPU 0: the vocoder's first window was beside a step of the loop, its second one was not."""
    metrics = ServerMetrics({}, {"ar": "0", "vocoder": "0"}, {}, frozenset({"ar"}), None)
    [_, loop, vocoder] = estimate([level(1)], metrics, "it", 2, "").stages.values()
    assert vocoder.fixed_ms == pytest.approx(3 * (0.5 + 1) / 2, rel=0.01)
    took = FIRST + 10 * (FIXED + PER_ROW)
    assert loop.first_ms is not None
    assert loop.first_ms + 10 * loop.fixed_ms == pytest.approx((took - 0.003 / 2) * 1e3, rel=0.01)


def test_nothing_was_answered() -> None:
    metrics = ServerMetrics({}, {}, {}, frozenset(), None)
    with pytest.raises(Unavailable, match="no request was answered"):
        estimate([Level(1, [], {}, {}, 0.0)], metrics, "it", 1, "")


def test_metrics_of_one_pipeline() -> None:
    """Of 12 steps 3 had one request, 3 two, and 6 three or four: 21 rows together, so 3.5 each."""
    found = parse_metrics(METRICS, "it")
    assert found.batches["ar"] == Batches(12, 30, 3 + 3 * 4 + 6 * 3.5**2)
    assert (found.gpus, found.memory) == ({"ar": "3"}, {"ar": 2.0 * 2**30})
    assert found.loops == frozenset({"ar"})
    assert found.gpu_bytes == 80 * 2**30
    assert parse_metrics(METRICS, "none").batches == {}
