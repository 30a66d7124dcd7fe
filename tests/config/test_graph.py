"""Cycles, reachability and topology against other ways to compute them."""

from __future__ import annotations

import graphlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_python.config import Edge, PipelineConfig, resolve_topology
from tests.config.changes import problems_of
from tests.config.family import SpeechPipelineConfig
from tests.config.pipelines import pipelines


@given(
    st.integers(2, 6).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 2), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
@settings(max_examples=200)
def test_random_graphs(kinds: list[list[int]]) -> None:
    """kinds[i][j]: 0 no edge, 1 a result, 2 a stream from stage i to stage j; stages without results are terminal."""
    n = len(kinds)
    names = [f"s{i}" for i in range(n)]
    stages = []
    for i, row in enumerate(kinds):
        results = [names[j] for j in range(n) if row[j] == 1 and j != i]
        streams = [names[j] for j in range(n) if row[j] == 2 and j != i]
        routing = {"next": results} if results else {"terminal": True}
        stages.append({"name": names[i], "process": "p", "factory": "a.b", "stream_to": streams, **routing})
    problems = problems_of({"model_path": "m", "stages": stages})

    adjacent = np.array(kinds, dtype=bool) & ~np.eye(n, dtype=bool)
    reached = np.linalg.matrix_power(adjacent.astype(np.int64) + np.eye(n, dtype=np.int64), n)[0] > 0
    try:
        graphlib.TopologicalSorter({i: np.flatnonzero(adjacent[:, i]).tolist() for i in range(n)}).prepare()
        cyclic = False
    except graphlib.CycleError:
        cyclic = True
    assert any("closes a cycle" in problem.message for problem in problems) == cyclic
    unreached = {problem.path for problem in problems if "leads here" in problem.message}
    assert unreached == {f"stages.{names[i]}" for i in range(n) if not reached[i]}
    terminal = ~np.array([[kind == 1 for kind in row] for row in kinds])
    terminal |= np.eye(n, dtype=bool)
    ends = bool((terminal.all(axis=1) & reached).any())
    assert any("terminal" in problem.message for problem in problems) == (not ends)


def test_topology_of_the_family() -> None:
    topology = resolve_topology(SpeechPipelineConfig(model_path="org/Speech-1", name="speech"))
    assert topology.pipeline == topology.orchestrator_model == "speech"
    assert [(g.name, g.stages, g.gpu, g.tp_size, g.triton_model) for g in topology.groups] == [
        ("front", ("prepare", "aggregate"), None, 1, "speech_front"),
        ("encoder", ("encoder",), None, 1, "speech_encoder"),
        ("thinker", ("thinker",), 0, 1, "speech_thinker"),
        ("decode", ("decode",), None, 1, "speech_decode"),
        ("talker", ("talker", "vocoder"), 1, 1, "speech_talker"),
    ]
    assert topology.edges == (
        Edge("prepare", "encoder", "next", False),
        Edge("prepare", "aggregate", "next", True),
        Edge("encoder", "aggregate", "next", False),
        Edge("aggregate", "thinker", "next", False),
        Edge("thinker", "decode", "next", False),
        Edge("thinker", "talker", "next", False),
        Edge("thinker", "talker", "stream", False),
        Edge("talker", "vocoder", "next", True),
        Edge("talker", "vocoder", "stream", True),
    )
    assert topology.group_of("vocoder").name == "talker"
    assert [edge.target for edge in topology.edges_from("prepare")] == ["encoder", "aggregate"]
    assert [edge.source for edge in topology.edges_to("aggregate")] == ["prepare", "encoder"]


def test_fusion_merges_whole_processes() -> None:
    config = SpeechPipelineConfig(model_path="org/Speech-1", fused_stages=[["aggregate", "thinker"]])
    groups = {group.name: group for group in resolve_topology(config).groups}
    assert groups["front"].stages == ("prepare", "aggregate", "thinker")
    assert groups["front"].gpu == 0
    assert "thinker" not in groups


def test_ranks_of_a_tensor_parallel_stage() -> None:
    base = SpeechPipelineConfig(model_path="org/Speech-1")
    thinker = base.stage("thinker").model_copy(update={"gpu": [4, 2], "tp_size": 2, "process": None})
    config = base.changed(stages=[thinker if stage.name == "thinker" else stage for stage in base.stages])
    group = resolve_topology(config).group_of("thinker")
    assert (group.gpus, group.gpu) == ((4, 2), 4)
    assert group.rank_processes == ("thinker_tp0", "thinker_tp1")


@given(pipelines())
@settings(max_examples=50)
def test_topology_covers_every_stage_and_edge_once(config: PipelineConfig) -> None:
    topology = resolve_topology(config)
    assert sorted(name for group in topology.groups for name in group.stages) == sorted(s.name for s in config.stages)
    assert len({group.triton_model for group in topology.groups} | {topology.orchestrator_model}) == 1 + len(
        topology.groups
    )
    expected = {(s.name, t, "next") for s in config.stages for t in s.next_stages}
    expected |= {(s.name, t, "stream") for s in config.stages for t in s.stream_to}
    assert {(edge.source, edge.target, edge.kind) for edge in topology.edges} == expected
    assert len(topology.edges) == len(expected)
