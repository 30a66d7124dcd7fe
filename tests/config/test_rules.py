"""Every rule: one change that breaks it, the paths of the problems that come of it, and what the first one says."""

from __future__ import annotations

from typing import Any

import pytest

from omni_python.config import ConfigError, EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from tests.config.changes import REMOVED, problems_of, speech_data
from tests.config.family import HERE, SpeechPipelineConfig

F = f"{HERE}.merge"
FRACTION = "total_gpu_memory_fraction"

# (change, paths of all problems, phrase in the first message)
FIELDS: list[tuple[dict[str, Any], list[str], str]] = [
    ({"model_path": REMOVED}, ["model_path"], "is required"),
    ({"model_path": ""}, ["model_path"], "must not be empty"),
    ({"model_path": "  "}, ["model_path"], "Hugging Face model id"),
    ({"model_path": 3}, ["model_path"], "must be a string, not 3"),
    ({"name": "a/b"}, ["name"], "letters, digits"),
    ({"name": "a" * 65}, ["name"], "1 to 64"),
    ({"model_path": "org/..."}, ["name"], "cannot be derived"),
    (
        {"relay_backend": "nixel"},
        ["relay_backend"],
        "'shm', 'nccl', 'nixl' or 'mooncake', not 'nixel'; did you mean 'nixl'",
    ),
    ({"realy_backend": "shm"}, ["realy_backend"], "unknown key; did you mean 'relay_backend'?"),
    ({"endpoints": {"base": "/x"}}, ["endpoints.base"], "valid: base_path"),
    ({"endpoints": {"base_path": "run"}}, ["endpoints.base_path"], "absolute path"),
    ({"endpoints": {"base_path": "/" + "x" * 48}}, ["endpoints.base_path"], "at most 48 bytes"),
    ({"trace": {"sample": 1.5}}, ["trace.sample"], "at most 1"),
    ({"limits": {"deadline_s": "soon"}}, ["limits.deadline_s"], "must be a number, not 'soon'"),
    ({"limits": {"deadline_s": None}}, ["limits.deadline_s"], "must be a number, not None"),
    ({"limits": {"deadline_s": 0}}, ["limits.deadline_s"], "must be above 0, not 0"),
    ({"limits": {"reload_s": float("inf")}}, ["limits.reload_s"], "must be a finite number, not inf"),
    ({"hosts": {"a": {"address": "a" * 254}}}, ["hosts.a.address"], "at most 253 characters, not 254"),
    ({"trace": {"keep": 0}}, ["trace.keep"], "at least 1"),
    ({"trace": {"endpoint": "x"}}, ["trace.endpoint"], "did you mean 'otlp_endpoint'"),
    ({"trace": {"otlp_endpoint": "localhost:4318"}}, ["trace.otlp_endpoint"], "a URL like http://localhost:4318/v1"),
    ({"env_defaults": {"OMP_NUM_THREADS": 1}}, ["env_defaults.OMP_NUM_THREADS"], "in YAML put it in quotes"),
    ({"env_defaults": {"A-B": "1"}}, ["env_defaults.A-B"], "not the name of an environment variable"),
    ({"terminal_stages_fn": "choose"}, ["terminal_stages_fn"], "dotted import path"),
    ({"config_cls": "a.B"}, ["config_cls"], "but the class is omni_python.config.schema.PipelineConfig"),
    ({"stages": []}, ["stages"], "at least one stage"),
    ({"stages": REMOVED}, ["stages"], "is required"),
    ({"stages": {"a": 1}}, ["stages"], "must be a list"),
    ({"stages": [7]}, ["stages[0]"], "must be a mapping"),
    ({"thinker.nxt": "decode"}, ["stages.thinker.nxt"], "unknown key; did you mean 'next'?"),
    ({"thinker.factory": REMOVED}, ["stages.thinker.factory"], "is required"),
    ({"thinker.factory": "create"}, ["stages.thinker.factory"], "dotted import path"),
    ({"thinker.factory_args": {"a": [1, (2,)]}}, ["stages.thinker.factory_args.a[1]"], "plain data"),
    ({"thinker.next": 5}, ["stages.thinker.next"], "a stage's name or a list of names, not 5"),
    ({"thinker.terminal": "no"}, ["stages.thinker.terminal"], "true or false"),
    ({"thinker.gpu": -1}, ["stages.thinker.gpu"], "a GPU's number (0, 1, ...)"),
    ({"thinker.gpu": True}, ["stages.thinker.gpu"], "a GPU's number"),
    ({"thinker.gpu": [0, -1]}, ["stages.thinker.gpu"], "not [0, -1]"),
    ({"thinker.tp_size": 0}, ["stages.thinker.tp_size"], "at least 1"),
    ({"thinker.relay": {"slot_size_mb": 0}}, ["stages.thinker.relay.slot_size_mb"], "at least 1"),
    ({"thinker.relay": {"slot_size_mb": 4097}}, ["stages.thinker.relay.slot_size_mb"], "at most 4096"),
    ({"thinker.relay": {"credits": 65}}, ["stages.thinker.relay.credits"], "at most 64"),
    ({"thinker.relay": {"creditz": 2}}, ["stages.thinker.relay.creditz"], "did you mean 'credits'"),
    ({"thinker.relay": {"device": "gpu"}}, ["stages.thinker.relay.device"], "'cpu', 'cuda' or 'cuda:N'"),
]

STAGES: list[tuple[dict[str, Any], list[str], str]] = [
    ({"decode.next": "vocoder"}, ["stages.decode.next"], "set either next or terminal"),
    ({"vocoder.terminal": False}, ["stages.vocoder.next"], "or set terminal: true"),
    ({"encoder.next": []}, ["stages.encoder.next", "stages.aggregate.wait_for[1]"], "at least one stage"),
    ({"decode.route_fn": F}, ["stages.decode.route_fn"], "not valid on a terminal stage"),
    ({"aggregate.merge_fn": REMOVED}, ["stages.aggregate.merge_fn"], "is required with wait_for"),
    ({"thinker.merge_fn": F}, ["stages.thinker.merge_fn"], "needs wait_for"),
    ({"thinker.wait_for_fn": F}, ["stages.thinker.wait_for_fn"], "needs wait_for"),
    ({"aggregate.wait_for": []}, ["stages.aggregate.wait_for"], "at least one stage"),
    ({"encoder.stream_done_to_fn": F}, ["stages.encoder.stream_done_to_fn"], "needs stream_to"),
    (
        {"encoder.next": "agregate"},
        ["stages.encoder.next", "stages.aggregate.wait_for[1]"],
        "did you mean 'aggregate'?",
    ),
    ({"thinker.next": ["decode", "talkr"]}, ["stages.thinker.next[1]"], "no stage 'talkr'; did you mean 'talker'?"),
    (
        {"aggregate.wait_for": ["prepare", "encodr"]},
        ["stages.aggregate.wait_for[1]", "stages.encoder.next"],
        "no stage 'encodr'",
    ),
    ({"talker.stream_to": ["vocodr"]}, ["stages.talker.stream_to[0]"], "did you mean 'vocoder'?"),
    ({"thinker.next": ["decode", "decode", "talker"]}, ["stages.thinker.next[1]"], "named twice"),
    ({"thinker.stream_to": ["thinker"]}, ["stages.thinker.stream_to[0]"], "this stage itself"),
    (
        {"thinker.project_payload": {"vocoder": F}},
        ["stages.thinker.project_payload.vocoder"],
        "(targets: decode, talker)",
    ),
    ({"entry_stage": "prepar"}, ["entry_stage"], "did you mean 'prepare'?"),
    ({"runtime_overrides": {"thinkr": {}}}, ["runtime_overrides.thinkr"], "did you mean 'thinker'?"),
    ({"decode.process": REMOVED}, ["stages.decode.process"], "for example 'decode'"),
    ({"thinker.relay": {"rank": 0}}, ["stages.thinker.relay"], "both or neither"),
    ({"thinker.relay": {"rank": 2, "world_size": 2}}, ["stages.thinker.relay.rank"], "below world_size (2)"),
    ({"decode.relay": {"device": "cuda"}}, ["stages.decode.relay.device"], "(valid: cpu)"),
    ({"talker.relay": {"device": "cuda:0"}}, ["stages.talker.relay.device"], "(valid: cpu, cuda, cuda:1)"),
]

GRAPH: list[tuple[dict[str, Any], list[str], str]] = [
    (
        {"encoder.next": "thinker"},
        ["stages.aggregate.wait_for[1]"],
        "'encoder' never sends its result here: its next (thinker)",
    ),
    ({"aggregate.wait_for": ["prepare"]}, ["stages.encoder.next"], "would drop this stage's result"),
    ({"talker.next": ["vocoder", "thinker"]}, ["stages.talker.next"], "thinker -> talker -> thinker"),
    ({"talker.stream_to": ["thinker"]}, ["stages.talker.stream_to"], "closes a cycle"),
    (
        {"thinker.next": "decode", "thinker.stream_to": []},
        ["stages.talker", "stages.vocoder"],
        "from the entry stage 'prepare'",
    ),
    (
        {"entry_stage": "thinker"},
        ["stages.prepare", "stages.encoder", "stages.aggregate"],
        "no result or stream leads here",
    ),
    ({"entry_stage": "aggregate"}, ["stages.aggregate.wait_for", "stages.prepare", "stages.encoder"], "cannot wait"),
    (
        {"decode.terminal": False, "vocoder.terminal": False, "decode.next": "vocoder", "vocoder.next": "decode"},
        ["stages.vocoder.next", "stages"],
        "decode -> vocoder -> decode",
    ),
    (
        {"thinker.next": "encoder", "thinker.stream_to": [], "thinker.route_fn": REMOVED},
        ["stages.thinker.next", "stages.decode", "stages.talker", "stages.vocoder", "stages.prepare"],
        "closes a cycle",
    ),
    ({"fused_stages": [["talker", "vocodr"]]}, ["fused_stages[0][0]", "fused_stages[0][1]"], "route to 'vocodr' alone"),
    ({"fused_stages": [["talker"]]}, ["fused_stages[0]"], "at least two"),
    (
        {"fused_stages": [["thinker", "decode"]]},
        ["fused_stages[0][0]"],
        "alone to be fused with it (its next: decode, talker)",
    ),
    ({"fused_stages": [["decode", "talker"]]}, ["fused_stages[0][0]", "fused_stages[0][1]"], "(its next: none)"),
    ({"fused_stages": [["encoder", "aggregate"]]}, ["fused_stages[0][1]"], "also receives from prepare"),
    (
        {"fused_stages": [["talker", "vocoder"], ["talker", "vocoder"]]},
        ["fused_stages[0][0]", "fused_stages[0][1]", "fused_stages[1][0]", "fused_stages[1][1]"],
        "named 2 times",
    ),
    (
        {"fused_stages": [["aggregate", "thinker"]], "thinker.tp_size": 2, "thinker.gpu": [2, 3]},
        ["fused_stages[0][1]", "stages.thinker.process"],
        "tensor-parallel",
    ),
]

PLACEMENT: list[tuple[dict[str, Any], list[str], str]] = [
    ({"thinker.gpu": [0, 2]}, ["stages.thinker.gpu"], "2 GPUs for tp_size 1"),
    ({"thinker.gpu": [0], "thinker.tp_size": 2}, ["stages.thinker.gpu"], "1 GPUs for tp_size 2"),
    ({"thinker.gpu": [0, 0], "thinker.tp_size": 2}, ["stages.thinker.gpu"], "names a GPU twice"),
    ({"thinker.tp_size": 2}, ["stages.thinker.gpu"], "must list 2 GPUs"),
    ({"thinker.replicas": 0}, ["stages.thinker.replicas"], "at least 1"),
    ({"thinker.replicas": 65}, ["stages.thinker.replicas"], "at most 64"),
    (
        {"thinker.gpu": [0, 2], "thinker.replicas": 3},
        ["stages.thinker.gpu"],
        "2 GPUs for 3 replicas of tp_size 1; give one for each rank of each replica",
    ),
    (
        {"thinker.gpu": [0, 2, 3, 3], "thinker.replicas": 2, "thinker.tp_size": 2},
        ["stages.thinker.gpu"],
        "names a GPU twice in [3, 3]",
    ),
    (
        {"thinker.gpu": None, "thinker.replicas": 2, "thinker.tp_size": 2},
        ["stages.thinker.replicas"],
        "list those of one after the other",
    ),
    (
        {"talker.replicas": 2, "talker.gpu": [1, 2]},
        ["stages.vocoder.replicas", "stages.vocoder.gpu"],
        "is 1, but 'talker' in the same process 'talker' has 2",
    ),
    (
        {"talker.replicas": 2, "talker.gpu": [1, 2], "vocoder.replicas": 2, "vocoder.gpu": [1, 3]},
        ["stages.vocoder.gpu"],
        "is [1, 3], but 'talker' in the same process 'talker' is on GPU 1, 2",
    ),
    (
        {"thinker.replicas": 2},
        ["stages.thinker.factory_args.total_gpu_memory_fraction"],
        "is required, since processes thinker@0, thinker@1 share GPU 0",
    ),
    (
        {"thinker.replicas": 2, "thinker.gpu": [3, 3], "runtime_overrides": {"thinker": {FRACTION: 0.6}}},
        ["runtime_overrides.thinker.total_gpu_memory_fraction"],
        "the shares of GPU 3 add up to 1.2",
    ),
    (
        {"thinker.gpu": [0, 2], "thinker.tp_size": 2, "decode.process": "thinker"},
        ["stages.thinker.process"],
        "owns its processes, but 'thinker' runs thinker, decode",
    ),
    (
        {"thinker.gpu": [0, 2], "thinker.tp_size": 2, "decode.process": "thinker_tp1"},
        ["stages.thinker.process"],
        "'thinker_tp1' has the name of another process",
    ),
    ({"vocoder.gpu": 2}, ["stages.vocoder.gpu"], "'talker' in the same process 'talker' is on GPU 1"),
    (
        {"vocoder.process": "vocoder", "vocoder.gpu": 2, "fused_stages": [["talker", "vocoder"]]},
        ["stages.vocoder.gpu"],
        "(joined by fused_stages)",
    ),
    (
        {"encoder.gpu": 0},
        [f"stages.encoder.factory_args.{FRACTION}", f"stages.thinker.factory_args.{FRACTION}"],
        "processes encoder, thinker share GPU 0",
    ),
    (
        {"encoder.gpu": 0, "encoder.factory_args": {FRACTION: 0.4}},
        [f"stages.thinker.factory_args.{FRACTION}"],
        "is required",
    ),
    (
        {"encoder.gpu": 0, "runtime_overrides": {"encoder": {FRACTION: 0.4}, "thinker": {FRACTION: 0.7}}},
        [f"runtime_overrides.thinker.{FRACTION}"],
        "to 1.1, more than 1:\n    stage    process  fraction\n    encoder  encoder  0.4\n    thinker  thinker  0.7\n",
    ),
    ({"decode.factory_args": {FRACTION: 40}}, [f"stages.decode.factory_args.{FRACTION}"], "at most 1, not 40"),
]


@pytest.mark.parametrize(("changes", "paths", "phrase"), FIELDS + STAGES + GRAPH + PLACEMENT)
def test_a_broken_rule_is_explained(changes: dict[str, Any], paths: list[str], phrase: str) -> None:
    problems = problems_of(speech_data(changes))
    assert [problem.path for problem in problems] == paths, [str(problem) for problem in problems]
    assert phrase in problems[0].message


VALID: list[dict[str, Any]] = [
    {},
    {"thinker.gpu": [0, 2], "thinker.tp_size": 2, "thinker.process": REMOVED},
    {"thinker.gpu": [0]},
    {"thinker.gpu": None, "thinker.tp_size": 2},
    {"thinker.gpu": [0, 2, 3], "thinker.replicas": 3},
    {"thinker.gpu": [0, 2, 3, 4], "thinker.replicas": 2, "thinker.tp_size": 2},
    {"encoder.replicas": 5},
    {"thinker.replicas": 2, "runtime_overrides": {"thinker": {FRACTION: 0.5}}},
    {"talker.replicas": 2, "talker.gpu": [1, 2], "vocoder.replicas": 2, "vocoder.gpu": [1, 2]},
    {"encoder.gpu": 0, "runtime_overrides": {"encoder": {FRACTION: 0.3}, "thinker": {FRACTION: 0.7}}},
    {"fused_stages": [["aggregate", "thinker"], ["talker", "vocoder"]]},
    {"aggregate.wait_for_fn": F, "thinker.stream_done_to_fn": F, "thinker.project_payload": {"talker": F}},
    {"thinker.relay": {"rank": 1, "world_size": 2, "device": "cuda:0"}},
    # 0.33 + 0.56 + 0.11 is above 1 by rounding alone.
    {
        "encoder.gpu": 1,
        "encoder.factory_args": {FRACTION: 0.33},
        "talker.factory_args": {FRACTION: 0.56},
        "vocoder.factory_args": {FRACTION: 0.11},
    },
]


@pytest.mark.parametrize("changes", VALID)
def test_what_the_rules_allow(changes: dict[str, Any]) -> None:
    assert problems_of(speech_data(changes)) == ()


def test_duplicate_names_are_told_apart_by_their_place() -> None:
    problems = problems_of(speech_data({"decode.process": REMOVED, "decode.name": "thinker"}))
    assert ("stages[4].name", "'thinker' is already the name of stages[3]") in [(p.path, p.message) for p in problems]
    assert "stages[4].process" in [p.path for p in problems]


def test_all_problems_are_reported_together() -> None:
    data = speech_data({"thinker.nxt": 1, "decode.route_fn": F, "aggregate.merge_fn": REMOVED, "relay_backend": "x"})
    paths = [problem.path for problem in problems_of(data)]
    assert paths == ["relay_backend", "stages.thinker.nxt", "stages.aggregate.merge_fn", "stages.decode.route_fn"]
    with pytest.raises(ConfigError) as caught:
        PipelineConfig(**data)
    text = str(caught.value)
    assert text.startswith("4 problems:\n") and all(f"\n  {path}: " in text for path in paths)


def test_a_stage_alone_reports_in_the_same_form() -> None:
    with pytest.raises(ConfigError, match=r"^stages\.thinker\.gpus: unknown key; did you mean 'gpu'\?"):
        StageConfig(name="thinker", factory=F, gpus=0)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"^relay\.credits: must be at least 1, not 0$"):
        RelayConfig(credits=0)
    with pytest.raises(ConfigError, match=r"^endpoints\.base_path: must be a string"):
        EndpointsConfig(base_path=1)  # type: ignore[arg-type]


def test_validating_a_mapping_reports_in_the_same_form() -> None:
    with pytest.raises(ConfigError, match=r"^stages\.decode\.route_fn: "):
        PipelineConfig.model_validate(speech_data({"decode.route_fn": F}))


class RenamedPipelineConfig(SpeechPipelineConfig):
    name: str | None = "../elsewhere"


def test_a_subclass_cannot_bring_an_unusable_name() -> None:
    with pytest.raises(ConfigError, match=r"^name: '\.\./elsewhere' cannot be used"):
        RenamedPipelineConfig(model_path="org/Speech-1")
