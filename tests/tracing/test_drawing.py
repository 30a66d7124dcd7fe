"""What `omni trace` draws is true to time, and what it writes for Perfetto is a whole file of its format."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from omni_python.commands.perfetto import perfetto
from omni_python.commands.timeline import timeline
from tests.tracing.made import made_trace


@pytest.mark.parametrize("columns", [80, 120, 237])
def test_lanes_are_true_to_time(columns: int) -> None:
    lines = [line.plain for line in timeline(made_trace(), columns)]
    rows = {line.split("  ")[0].strip(" ╰"): line for line in lines[3:9]}
    left = rows["thinker"].index("▚")
    width = rows["orchestrator"].count("─")
    assert rows["orchestrator"].index("─") == left and width >= 20

    def columns_of(row: str, cell: str) -> list[float]:
        """From where to where a cell stands, in seconds."""
        return [(rows[row].index(cell) - left) / width * 10, (rows[row].rindex(cell) + 1 - left) / width * 10]

    column = 10 / width + 1e-9
    assert columns_of("thinker", "▚") == pytest.approx([0, 1], abs=column)
    assert columns_of("thinker", "█") == pytest.approx([1, 5], abs=column)
    assert columns_of("talker", "─") == pytest.approx([2, 5], abs=column)
    assert columns_of("talker", "█") == pytest.approx([5, 8], abs=column)
    assert columns_of("talker", "▒") == pytest.approx([8, 10], abs=column)
    assert columns_of("from thinker", "╌")[0] == pytest.approx(2, abs=column)
    assert columns_of("from thinker", "▶")[1] == pytest.approx(5, abs=column)
    assert max(len(line) for line in lines[2:]) <= columns
    told = "4000.0 ms computing, 1000.0 ms queued" in rows["thinker"] and "9 chunks" in rows["from thinker"]
    assert told == (columns > 100) and "4000.0 ms" in rows["thinker"]


def test_a_failure_says_why() -> None:
    title = timeline(made_trace("failed", "stage thinker is gone"), 100)[0].plain
    assert "demo  7-1  failed in 10000.0 ms" in title and title.endswith("stage thinker is gone")


def test_perfettos_file_has_every_span_and_hop() -> None:
    trace = made_trace()
    events = json.loads(perfetto(trace))["traceEvents"]
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {"orchestrator", "ar (replica 1)", "speech", "hops"}
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[names[event["pid"], event["tid"]]].append((event["name"], event["ts"], event["dur"]))
    assert slices["thinker"] == [("thinker", 0, 5e6), ("queue", 0, 1e6), ("compute", 1e6, 4e6)]
    assert [slice[0] for slice in slices["talker"]] == ["talker", "wait", "compute", "compute"]
    assert slices["thinker to talker"] == [("9 chunks", 2e6, 3e6)]
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == 4  # the stream has one for each of its ends
    for number, start in starts.items():
        source, target = start["name"].split(" to ")
        assert names[start["pid"], start["tid"]] == source and start["ts"] <= ends[number]["ts"]
        assert names[ends[number]["pid"], ends[number]["tid"]] == target and ends[number]["bp"] == "e"
        for event, stage in ((start, source), (ends[number], target)):
            _, begin, length = slices[stage][0]
            assert begin <= event["ts"] <= begin + length, "an arrow must touch a slice, or Perfetto drops it"
