"""Dotted paths, arguments of factories, environment defaults, and the checkpoint's place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pytest

from omni_python.config import ConfigError, PipelineConfig
from omni_python.config.resolve import (
    apply_env_defaults,
    check_imports,
    factory_kwargs,
    resolve_dotted,
    resolved_model_path,
)
from tests.config import family
from tests.config.changes import speech_data
from tests.config.family import HERE, SpeechPipelineConfig


def kwargs(stage: str, changes: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    config = PipelineConfig(**speech_data(changes or {}))
    return factory_kwargs(config, config.stage(stage), **options)


def test_dotted_paths_lead_to_functions() -> None:
    assert resolve_dotted(f"{HERE}.merge", "x") is family.merge
    assert resolve_dotted("collections.OrderedDict", "x").__name__ == "OrderedDict"


@pytest.mark.parametrize(
    ("dotted", "message"),
    [
        ("merge", "not a dotted import path"),
        ("tests.config.famly.merge", "there is no module 'tests.config.famly'"),
        (f"{HERE}.merg", "has no 'merg'; did you mean 'merge'?"),
        (f"{HERE}.NOT_A_FUNCTION", "is a int, not a function or class"),
        ("broken_module.make", "importing 'broken_module' failed: ZeroDivisionError"),
        ("lacking_module.make", "importing 'lacking_module' failed: No module named 'not_installed_here'"),
    ],
)
def test_dotted_paths_that_lead_nowhere(
    dotted: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0")
    (tmp_path / "lacking_module.py").write_text("import not_installed_here")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        resolve_dotted(dotted, "stages.a.factory")
    assert str(caught.value).startswith("stages.a.factory: ")
    assert message in str(caught.value)


def test_model_path_and_gpu_are_injected_where_accepted() -> None:
    assert kwargs("prepare") == {}
    assert kwargs("encoder") == {"model_path": "org/Speech-1"}
    assert kwargs("talker") == {"model_path": "org/Speech-1", "gpu_id": 1, "max_batch": 4}
    assert kwargs("talker", model_path="/checkpoints/speech")["model_path"] == "/checkpoints/speech"
    assert kwargs("talker", {"talker.factory_args": {"max_batch": 4, "gpu_id": 7, "model_path": "x"}}) == {
        "model_path": "x",
        "gpu_id": 7,
        "max_batch": 4,
    }


def test_overrides_win_over_factory_args() -> None:
    overrides = {"talker": {"max_batch": 2, "anything": [1]}}
    assert kwargs("talker", {"runtime_overrides": overrides}) == {
        "model_path": "org/Speech-1",
        "gpu_id": 1,
        "max_batch": 2,
        "anything": [1],
    }


def test_ranks_get_their_own_gpu() -> None:
    changes = {
        "thinker.gpu": [5, 3],
        "thinker.tp_size": 2,
        "thinker.factory": f"{HERE}.create_ranked",
        "thinker.factory_args": {},
    }
    assert kwargs("thinker", changes, tp_rank=1) == {
        "model_path": "org/Speech-1",
        "gpu_id": 3,
        "tp_rank": 1,
        "tp_size": 2,
    }


def test_a_memory_budget_reaches_only_factories_that_take_it() -> None:
    budget = {"total_gpu_memory_fraction": 0.5}
    assert kwargs("encoder", {"encoder.factory_args": budget}) == {"model_path": "org/Speech-1"}
    assert kwargs("talker", {"talker.factory_args": {"max_batch": 1, **budget}})["total_gpu_memory_fraction"] == 0.5


def test_unknown_and_missing_arguments_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        kwargs("encoder", {"encoder.factory_args": {"dtyp": "x"}, "runtime_overrides": {"encoder": {"size": 1}}})
    assert [problem.path for problem in caught.value.problems] == [
        "stages.encoder.factory_args.dtyp",
        "runtime_overrides.encoder.size",
    ]
    assert "no argument 'dtyp'; did you mean 'dtype'? (it takes: model_path, gpu_id, dtype)" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        kwargs("thinker", {"thinker.gpu": None, "thinker.factory_args": {}})
    assert [problem.path for problem in caught.value.problems] == ["stages.thinker.factory_args"] * 2
    assert "requires 'gpu_id'; set the stage's gpu" in str(caught.value)
    assert "requires 'max_batch'; set it in factory_args" in str(caught.value)


def create_typed(
    model_path: str, frames: int = 8, share: float | None = None, engine: Literal["torch", "sglang"] = "torch"
) -> None: ...


def test_arguments_of_a_wrong_type_are_named() -> None:
    typed = {"encoder.factory": f"{__name__}.create_typed"}
    good = {"frames": 3, "share": 1, "engine": "sglang"}
    assert kwargs("encoder", {**typed, "encoder.factory_args": good}) == {"model_path": "org/Speech-1", **good}
    with pytest.raises(ConfigError) as caught:
        wrong = {"frames": "many", "share": True, "engine": "vllm"}
        kwargs("encoder", {**typed, "encoder.factory_args": wrong, "runtime_overrides": {"encoder": {"frames": 1.5}}})
    assert [str(problem) for problem in caught.value.problems] == [
        "runtime_overrides.encoder.frames: must be a whole number, not 1.5",
        "stages.encoder.factory_args.share: must be a number, not True",
        "stages.encoder.factory_args.engine: must be 'torch' or 'sglang', not 'vllm'",
    ]


def test_all_functions_are_checked() -> None:
    assert check_imports(SpeechPipelineConfig(model_path="org/Speech-1")) == []
    config = PipelineConfig(
        **speech_data(
            {
                "terminal_stages_fn": f"{HERE}.a1",
                "info_fn": f"{HERE}.a8",
                "prepare.project_payload": {"encoder": f"{HERE}.a2"},
                "aggregate.merge_fn": f"{HERE}.a3",
                "aggregate.wait_for_fn": f"{HERE}.a4",
                "thinker.route_fn": f"{HERE}.a5",
                "thinker.stream_done_to_fn": f"{HERE}.a6",
                "decode.factory": f"{HERE}.a7",
            }
        )
    )
    assert {problem.path for problem in check_imports(config)} == {
        "terminal_stages_fn",
        "info_fn",
        "stages.prepare.project_payload.encoder",
        "stages.aggregate.merge_fn",
        "stages.aggregate.wait_for_fn",
        "stages.thinker.route_fn",
        "stages.thinker.stream_done_to_fn",
        "stages.decode.factory",
    }


def test_environment_defaults_leave_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_TEST_SET", "mine")
    monkeypatch.setenv("OMNI_TEST_UNSET", "")
    monkeypatch.delenv("OMNI_TEST_UNSET")
    config = SpeechPipelineConfig(
        model_path="org/Speech-1", env_defaults={"OMNI_TEST_SET": "theirs", "OMNI_TEST_UNSET": "theirs"}
    )
    apply_env_defaults(config)
    assert os.environ["OMNI_TEST_SET"] == "mine"
    assert os.environ["OMNI_TEST_UNSET"] == "theirs"


def test_relative_checkpoints_count_from_the_repository(tmp_path: Path) -> None:
    repository = tmp_path / "model_repository"
    (repository / "weights").mkdir(parents=True)

    def resolved(model_path: str) -> str:
        return resolved_model_path(SpeechPipelineConfig(model_path=model_path, name="speech"), repository)

    assert resolved("../checkpoints/tiny") == str(tmp_path / "checkpoints" / "tiny")
    assert resolved("./absent") == str(repository / "absent")
    assert resolved("weights") == str(repository / "weights")
    assert resolved("/somewhere/else") == "/somewhere/else"
    assert resolved("~/tiny") == str(Path.home() / "tiny")
    assert resolved("org/Speech-1") == "org/Speech-1"
