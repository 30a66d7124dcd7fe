"""The rules of the graph: fan-in that can complete, no cycle, no stage without a way to it, no fused branch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from omni_python.config.declaration import PipelineDeclaration, StageConfig
from omni_python.config.errors import Problem, did_you_mean, listed


def check_graph(config: PipelineDeclaration) -> list[Problem]:
    """What is wrong with the edges of a pipeline with unique stage names. Edges to unknown stages are ignored."""
    stages = {stage.name: stage for stage in config.stages}
    problems = [*_check_fan_in(config, stages), *_check_cycles(stages), *_check_fused(config, stages)]
    used = [name for stage in config.stages for name in (*stage.next_stages, *stage.stream_to)]
    # A mistyped name would make its stage look unreachable too; that name is reported already.
    if config.resolved_entry_stage in stages and all(name in stages for name in used):
        problems += _check_reachable(config, stages)
    return problems


def _targets(stage: StageConfig, stages: dict[str, StageConfig]) -> list[str]:
    """Where results and chunks go, each once, this stage itself and unknown ones left out."""
    named = dict.fromkeys((*stage.next_stages, *stage.stream_to))
    return [name for name in named if name in stages and name != stage.name]


def _check_fan_in(config: PipelineDeclaration, stages: dict[str, StageConfig]) -> Iterator[Problem]:
    for stage in config.stages:
        if stage.wait_for and stage.name == config.resolved_entry_stage:
            yield Problem(f"stages.{stage.name}.wait_for", "the entry stage starts with the request and cannot wait")
        for index, source in enumerate(stage.wait_for or ()):
            if source in stages and source != stage.name and stage.name not in stages[source].next_stages:
                yield Problem(
                    f"stages.{stage.name}.wait_for[{index}]",
                    f"{source!r} never sends its result here: its next ({listed(stages[source].next_stages)}) "
                    f"lacks {stage.name!r}",
                )
        for target in stage.next_stages:
            waits = stages[target].wait_for if target in stages and target != stage.name else None
            if waits and stage.name not in waits:
                yield Problem(
                    f"stages.{stage.name}.next",
                    f"{target!r} would drop this stage's result: its wait_for ({listed(waits)}) lacks {stage.name!r}",
                )


def _check_cycles(stages: dict[str, StageConfig]) -> Iterator[Problem]:
    """One problem for each edge that closes a cycle, in depth-first order."""
    done: set[str] = set()
    for start in stages:
        path: list[str] = []
        # Of each stage on the path, the targets still to be followed.
        pending: list[Iterator[str]] = []
        following: Iterator[str] = iter((start,))
        while True:
            name = next(following, None)
            if name is None:
                if not pending:
                    break
                done.add(path.pop())
                following = pending.pop()
            elif name in path:
                last = stages[path[-1]]
                field = "next" if name in last.next_stages else "stream_to"
                cycle = " -> ".join([*path[path.index(name) :], name])
                yield Problem(f"stages.{last.name}.{field}", f"closes a cycle: {cycle}; a request would never end")
            elif name not in done:
                path.append(name)
                pending.append(following)
                following = iter(_targets(stages[name], stages))


def _check_reachable(config: PipelineDeclaration, stages: dict[str, StageConfig]) -> Iterator[Problem]:
    entry = config.resolved_entry_stage
    reached = {entry}
    waiting = [entry]
    while waiting:
        new = [name for name in _targets(stages[waiting.pop()], stages) if name not in reached]
        reached.update(new)
        waiting += new
    for name in stages:
        if name not in reached:
            yield Problem(f"stages.{name}", f"no result or stream leads here from the entry stage {entry!r}")
    terminals = config.terminal_stages
    if not terminals:
        yield Problem("stages", "no stage is terminal; set terminal: true on each stage whose result the client gets")
    elif not reached.intersection(terminals):
        yield Problem(
            f"stages.{entry}", f"no terminal stage can be reached from the entry stage (terminal: {listed(terminals)})"
        )


def _check_fused(config: PipelineDeclaration, stages: dict[str, StageConfig]) -> Iterator[Problem]:
    uses = Counter(name for group in config.fused_stages for name in group)
    senders: dict[str, list[str]] = {}
    for stage in config.stages:
        for target in stage.next_stages:
            senders.setdefault(target, []).append(stage.name)
    for number, group in enumerate(config.fused_stages):
        if len(group) < 2:
            yield Problem(f"fused_stages[{number}]", "must name at least two stages")
        for index, name in enumerate(group):
            path = f"fused_stages[{number}][{index}]"
            if name not in stages:
                yield Problem(
                    path, f"there is no stage {name!r}{did_you_mean(name, stages)} (stages: {listed(stages)})"
                )
                continue
            if uses[name] > 1:
                yield Problem(path, f"{name!r} is named {uses[name]} times; a stage can be in one group, once")
            if stages[name].tp_size > 1:
                yield Problem(path, f"{name!r} is tensor-parallel and owns its processes; it cannot be fused")
            if index + 1 < len(group) and stages[name].next_stages != (group[index + 1],):
                yield Problem(
                    path,
                    f"{name!r} must route to {group[index + 1]!r} alone to be fused with it "
                    f"(its next: {listed(stages[name].next_stages)})",
                )
            others = [sender for sender in senders.get(name, []) if sender != group[index - 1]]
            if index and others:
                yield Problem(path, f"{name!r} also receives from {listed(others)}; a fused group must be a chain")
