"""From names to what runs: dotted paths to objects, a stage's declaration to its factory's arguments."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omni_python.config.argument_types import type_hints, type_problems
from omni_python.config.errors import ConfigError, Problem, config_error, did_you_mean, listed
from omni_python.config.memory import MEMORY_FRACTION
from omni_python.config.model_hub import cached_model, is_hub_id
from omni_python.config.placement import stage_arguments
from omni_python.config.schema import PipelineConfig, StageConfig


def resolve_dotted(dotted: str, where: str) -> Callable[..., Any]:
    """The function or class at `dotted` ("package.module.name"); importing its module runs that module.

    Raises `ConfigError`, with the field's path `where`, if the module cannot be imported, lacks the name, or has
    something there that cannot be called.
    """
    module_name, _, attribute = dotted.rpartition(".")
    if not module_name or not attribute:
        raise config_error(where, f"{dotted!r} is not a dotted import path like 'package.module.function'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise config_error(where, f"{dotted!r}: there is no module {error.name!r}") from None
        raise config_error(where, f"importing {module_name!r} failed: {error}") from error
    except Exception as error:  # a module may raise anything while it is imported
        raise config_error(where, f"importing {module_name!r} failed: {type(error).__name__}: {error}") from error
    try:
        found = getattr(module, attribute)
    except AttributeError:
        hint = did_you_mean(attribute, vars(module))
        raise config_error(where, f"module {module_name!r} has no {attribute!r}{hint}") from None
    if not callable(found):
        raise config_error(where, f"{dotted!r} is a {type(found).__name__}, not a function or class")
    return found


def factory_kwargs(
    config: PipelineConfig, stage: StageConfig, *, model_path: str | None = None, tp_rank: int = 0, replica: int = 0
) -> dict[str, Any]:
    """The arguments for a stage's factory: `factory_args`, `runtime_overrides`, and what only the placement knows.

    Injected where the factory names the parameter and the declaration leaves it out: `model_path` (the one given here,
    as resolved by `resolved_model_path`, else the configuration's), `gpu_id` (the rank's GPU, for a stage on a GPU),
    `tp_rank` and `tp_size`, `gpu_ids` (those of all ranks) and `process`. `total_gpu_memory_fraction` also serves
    placement and is left out where the factory does not take it. Raises `ConfigError` for arguments that the factory
    does not take or lacks, or whose types are not those of its signature.
    """
    factory = resolve_dotted(stage.factory, f"stages.{stage.name}.factory")
    parameters = inspect.signature(factory).parameters
    named = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    injected: dict[str, Any] = {
        "model_path": model_path or config.model_path,
        "tp_rank": tp_rank,
        "tp_size": stage.tp_size,
        "gpu_ids": list(stage.replica_gpus(replica)),
        "process": stage.process_name,
    }
    if stage.gpus:
        injected["gpu_id"] = stage.replica_gpus(replica)[tp_rank]
    declared = stage_arguments(config, stage)
    if MEMORY_FRACTION not in named and not takes_any:
        declared.pop(MEMORY_FRACTION, None)
    arguments = {**{name: value for name, value in injected.items() if name in named}, **declared}

    problems: list[Problem] = []
    if stage.tp_size > 1 and (why := _why_not_parallel(stage, named, takes_any, arguments)):
        problems.append(Problem(f"stages.{stage.name}.tp_size", f"is {stage.tp_size}, but {why}"))
    hints = {name: hint for name, hint in type_hints(factory).items() if name in named}
    for name, value in declared.items():
        path = _argument_path(config, stage, name)
        if name not in named and not takes_any:
            message = f"the factory {stage.factory} takes no argument {name!r}{did_you_mean(name, named)}"
            problems.append(Problem(path, f"{message} (it takes: {listed(named)})"))
        problems += type_problems(hints, name, value, path)
    missing = [name for name, p in named.items() if p.default is p.empty and name not in arguments]
    for name in missing:
        hint = "set the stage's gpu" if name == "gpu_id" else "set it in factory_args"
        problems.append(
            Problem(f"stages.{stage.name}.factory_args", f"the factory {stage.factory} requires {name!r}; {hint}")
        )
    if problems:
        raise ConfigError(problems)
    return arguments


def _why_not_parallel(
    stage: StageConfig, named: Mapping[str, inspect.Parameter], takes_any: bool, arguments: Mapping[str, Any]
) -> str | None:
    """Why a factory cannot make a tensor-parallel stage, as far as its arguments tell."""
    if "tp_size" not in named and not takes_any:
        return f"the factory {stage.factory} takes no tp_size: its stage runs in one process"
    if "engine" in named and arguments.get("engine", named["engine"].default) == "torch":
        return 'engine "torch" runs in one process; engine "sglang" does it'
    return None


def _argument_path(config: PipelineConfig, stage: StageConfig, name: str) -> str:
    if name in config.runtime_overrides.get(stage.name, {}):
        return f"runtime_overrides.{stage.name}.{name}"
    return f"stages.{stage.name}.factory_args.{name}"


def dotted_functions(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Every function that the configuration names apart from the factories: (dotted path, the field's path)."""
    if config.terminal_stages_fn is not None:
        yield config.terminal_stages_fn, "terminal_stages_fn"
    if config.info_fn is not None:
        yield config.info_fn, "info_fn"
    for stage in config.stages:
        path = f"stages.{stage.name}"
        for field in ("route_fn", "wait_for_fn", "merge_fn", "stream_done_to_fn"):
            dotted = getattr(stage, field)
            if dotted is not None:
                yield dotted, f"{path}.{field}"
        for target, dotted in stage.project_payload.items():
            yield dotted, f"{path}.project_payload.{target}"


def check_imports(config: PipelineConfig) -> list[Problem]:
    """What is wrong with the functions and factories that a valid configuration names. Imports them, calls none."""
    problems: list[Problem] = []
    for dotted, where in dotted_functions(config):
        try:
            resolve_dotted(dotted, where)
        except ConfigError as error:
            problems += error.problems
    for stage in config.stages:
        try:
            factory_kwargs(config, stage)
        except ConfigError as error:
            problems += error.problems
    return problems


def apply_env_defaults(config: PipelineConfig) -> None:
    """Set the environment variables that the process lacks. Call it before importing factories."""
    for name, value in config.env_defaults.items():
        os.environ.setdefault(name, value)


def resolved_model_path(config: PipelineConfig, repository: Path) -> str:
    """Where the checkpoint is: an absolute path. An id of a model that Hugging Face's cache lacks is left as it is, as
    is anything else that can be neither: pipelines without a checkpoint have a word there.

    A relative path counts from the model repository's folder, so that a repository can be moved. What begins with
    "./" or "../" always is such a path; anything else is one if it exists there, and a Hugging Face id if not.
    """
    path = Path(config.model_path).expanduser()
    if path.is_absolute():
        return str(path)
    local = repository / path
    if config.model_path.startswith(("./", "../")) or local.exists():
        return str(local.resolve())
    found = cached_model(config.model_path) if is_hub_id(config.model_path) else None
    return found or config.model_path
