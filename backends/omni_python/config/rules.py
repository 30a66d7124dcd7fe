"""The rules that one stage keeps, given the names of the others. `graph` and `placement` hold those of the whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from omni_python.config.declaration import PipelineDeclaration, StageConfig
from omni_python.config.errors import Problem, did_you_mean, listed, stage_paths
from omni_python.config.fields import NAME_RULE, is_name
from omni_python.config.graph import check_graph
from omni_python.config.hosts import check_hosts
from omni_python.config.memory import check_memory
from omni_python.config.placement import check_gpus, check_placement


def check_pipeline(config: PipelineDeclaration) -> list[Problem]:
    """Everything that is wrong with a configuration whose fields have the right types."""
    names = [stage.name for stage in config.stages]
    problems = [*_check_pipeline_fields(config, names), *check_stages(config.stages, names)]
    if len(set(names)) == len(names) and names:
        problems += check_graph(config)
        problems += check_placement(config)
        problems += check_hosts(config)
        problems += check_memory(config)
    return problems


def check_stages(stages: Sequence[StageConfig], names: Collection[str]) -> list[Problem]:
    """What is wrong with each stage by itself and with the names that it uses."""
    problems: list[Problem] = []
    for stage, path in zip(stages, stage_paths([stage.name for stage in stages]), strict=True):
        problems += _check_routing(stage, path)
        problems += _check_fan_in(stage, path)
        problems += _check_names(stage, path, names)
        problems += check_gpus(stage, path)
        problems += _check_relay(stage, path)
    return problems


def check_reference(name: str, path: str, names: Collection[str]) -> Iterator[Problem]:
    """A problem unless `name` is one of the stages' names."""
    if name not in names:
        yield Problem(path, f"there is no stage {name!r}{did_you_mean(name, names)} (stages: {listed(names)})")


def _check_pipeline_fields(config: PipelineDeclaration, names: list[str]) -> Iterator[Problem]:
    expected = f"{type(config).__module__}.{type(config).__qualname__}"
    if config.config_cls != expected:
        yield Problem("config_cls", f"is {config.config_cls!r}, but the class is {expected}; leave it out")
    if not config.model_path.strip():
        yield Problem("model_path", "must be a Hugging Face model id or the path of a checkpoint's folder")
    elif not config.resolved_name:
        yield Problem("name", f"cannot be derived from model_path {config.model_path!r}; set it")
    elif not is_name(config.resolved_name):
        # A subclass that declares `name` anew loses the field's own check.
        yield Problem("name", f"{config.resolved_name!r} cannot be used in a model name; {NAME_RULE}")
    if not names:
        yield Problem("stages", "must have at least one stage")
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem(f"stages[{index}].name", f"{name!r} is already the name of stages[{names.index(name)}]")
    if config.entry_stage is not None:
        yield from check_reference(config.entry_stage, "entry_stage", names)
    for stage in config.runtime_overrides:
        yield from check_reference(stage, f"runtime_overrides.{stage}", names)


def _check_routing(stage: StageConfig, path: str) -> Iterator[Problem]:
    if stage.terminal and stage.next is not None:
        yield Problem(f"{path}.next", "a terminal stage sends its result to the client; set either next or terminal")
    elif not stage.terminal and not stage.next_stages:
        yield Problem(f"{path}.next", "name at least one stage that receives the result, or set terminal: true")
    if stage.terminal and stage.route_fn is not None:
        yield Problem(f"{path}.route_fn", "is not valid on a terminal stage, which has no next to choose from")
    if stage.stream_done_to_fn is not None and not stage.stream_to:
        yield Problem(f"{path}.stream_done_to_fn", "needs stream_to, the stages that it chooses from")
    targets = list(dict.fromkeys((*stage.next_stages, *stage.stream_to)))
    for target in stage.project_payload:
        if target not in targets:
            yield Problem(
                f"{path}.project_payload.{target}",
                f"{target!r} is no target of this stage (targets: {listed(targets)})",
            )


def _check_fan_in(stage: StageConfig, path: str) -> Iterator[Problem]:
    if stage.wait_for is not None and not stage.wait_for:
        yield Problem(f"{path}.wait_for", "must name at least one stage, or be left out")
    if stage.wait_for and stage.merge_fn is None:
        yield Problem(f"{path}.merge_fn", "is required with wait_for: the function that merges what was waited for")
    if stage.merge_fn is not None and stage.wait_for is None:
        yield Problem(f"{path}.merge_fn", "needs wait_for, the stages whose results it merges")
    if stage.wait_for_fn is not None and stage.wait_for is None:
        yield Problem(f"{path}.wait_for_fn", "needs wait_for, the stages that it chooses from")


def _check_names(stage: StageConfig, path: str, names: Collection[str]) -> Iterator[Problem]:
    """Stages named in lists: they exist, are others than this one, and stand there once."""
    for field, used in (
        ("next", stage.next_stages),
        ("wait_for", stage.wait_for or ()),
        ("stream_to", stage.stream_to),
    ):
        for index, name in enumerate(used):
            where = f"{path}.{field}" if isinstance(getattr(stage, field), str) else f"{path}.{field}[{index}]"
            if name == stage.name:
                yield Problem(where, f"{name!r} is this stage itself; name other stages")
            elif name in used[:index]:
                yield Problem(where, f"{name!r} is named twice")
            else:
                yield from check_reference(name, where, names)


def _check_relay(stage: StageConfig, path: str) -> Iterator[Problem]:
    relay = stage.relay
    if relay is None:
        return
    if (relay.rank is None) != (relay.world_size is None):
        yield Problem(f"{path}.relay", "rank and world_size belong together; set both or neither")
    elif relay.rank is not None and relay.world_size is not None and relay.rank >= relay.world_size:
        yield Problem(f"{path}.relay.rank", f"must be below world_size ({relay.world_size}), not {relay.rank}")
    if relay.device is not None and relay.device.startswith("cuda"):
        valid = ["cuda", *(f"cuda:{gpu}" for gpu in stage.gpus)] if stage.gpus else []
        if relay.device not in valid:
            yield Problem(
                f"{path}.relay.device",
                f"{relay.device!r} is not where the stage runs (valid: {listed(['cpu', *valid])})",
            )
