"""`omni validate PATH...`: explain what pipelines come to, or everything that is wrong with them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python.commands.help import HelpFormatter
from omni_python.commands.printing import drawn
from omni_python.config.errors import ConfigError

if TYPE_CHECKING:
    from omni_python.config.schema import PipelineConfig
    from omni_python.config.topology import ProcessGroup, Topology

_DESCRIPTION = """\
Check pipelines and draw what each comes to: its Triton models, their stages, and the edges between them with the ways
that payloads may take. Every problem is printed with the path of its field. Exit status 2 if there was one.
"""

_EXAMPLES = """\
examples:
  omni validate model_repository
  omni validate --explain model_repository/qwen3_omni
  omni validate --json my_pipeline.yaml | jq '.[].problems'
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "validate",
        help="check pipelines and draw their topology",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a pipeline's YAML file, or a model repository (or one model's folder), whose pipelines are all checked",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print also which way each edge's payloads go, and why, and who asks for how much of each GPU's memory",
    )
    parser.add_argument(
        "--no-import",
        action="store_true",
        help="do not import the functions that a pipeline names, nor check the arguments of its factories "
        "(the class that config_cls names is imported in any case)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list with an object for each pipeline")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print a description of each pipeline, or its problems on stderr; 2 if any has problems."""
    paths = [path for given in args.paths for path in pipeline_files(given)]
    results = [(path, _checked(path, imports=not args.no_import)) for path in paths]
    if args.json:
        print(json.dumps([_as_json(path, result) for path, result in results], indent=2))
    else:
        for index, (path, result) in enumerate(results):
            _print(path, result, args.explain, first=index == 0)
    return 2 if any(isinstance(result, ConfigError) for _, result in results) else 0


def _checked(path: Path, imports: bool) -> PipelineConfig | ConfigError:
    """The pipeline, or everything that is wrong with it."""
    from omni_python.config.files import load_pipeline
    from omni_python.config.resolve import check_imports

    try:
        config = load_pipeline(path)
    except ConfigError as error:
        return error
    problems = check_imports(config) if imports else []
    return ConfigError(problems) if problems else config


def _print(path: Path, result: PipelineConfig | ConfigError, explain: bool, first: bool) -> None:
    if isinstance(result, ConfigError):
        print(f"{path}: {len(result.problems)} problem{'s' * (len(result.problems) > 1)}", file=sys.stderr)
        for problem in result.problems:
            print(f"  {problem}", file=sys.stderr)
    else:
        print(drawn("\n" * (not first) + f"{path}: valid\n{describe(result, explain)}", sys.stdout.encoding))


def _as_json(path: Path, result: PipelineConfig | ConfigError) -> dict[str, Any]:
    """What is wrong with a pipeline, or its Triton models with their stages, edges and places."""
    from omni_python.config.topology import resolve_topology

    if isinstance(result, ConfigError):
        problems = [{"field": problem.path, "message": problem.message} for problem in result.problems]
        return {"path": str(path), "valid": False, "problems": problems}
    topology = resolve_topology(result)
    models = [
        {
            "name": group.triton_model,
            **({"host": group.host} if group.host else {}),
            "stages": list(group.stages),
            "replica_gpus": [list(gpus) for gpus in group.replica_gpus],
        }
        for group in topology.groups
    ]
    edges = [{"from": edge.source, "to": edge.target, "kind": edge.kind} for edge in topology.edges]
    return {
        "path": str(path),
        "valid": True,
        "problems": [],
        "pipeline": result.resolved_name,
        "model_path": result.model_path,
        "orchestrator": topology.orchestrator_model,
        "entry_stage": topology.entry_stage,
        "models": models,
        "edges": edges,
    }


def pipeline_files(path: Path) -> list[Path]:
    """`path` itself if it is a file, else the pipelines of the model repository or model folder `path`.

    Raises `ConfigError` if there are none.
    """
    from omni_python.config.errors import config_error

    if not path.is_dir():
        return [path]
    found = sorted(path.glob("1/pipeline.yaml")) or sorted(path.glob("*/1/pipeline.yaml"))
    if not found:
        raise config_error(str(path), "holds no pipeline (neither 1/pipeline.yaml nor <pipeline>/1/pipeline.yaml)")
    return found


def describe(config: PipelineConfig, explain: bool = False) -> str:
    """The topology for people, drawn. `explain` adds the ways of each edge's payloads, and the shares of each GPU's
    memory."""
    from omni_python.commands.diagram import draw

    lines = [f"pipeline {config.resolved_name}  (model {config.model_path}, relay {config.relay_backend})"]
    return "\n".join([*lines, *draw(config), *(["", *_details(config), *_memory_lines(config)] if explain else [])])


def _details(config: PipelineConfig) -> list[str]:
    """One line a Triton model, and under it a line for each stage, each edge, and each way of its payloads."""
    from omni_python.config.hosts import listeners
    from omni_python.config.topology import resolve_topology

    topology = resolve_topology(config)
    lines = [f"  {listener.url}  {process or 'orchestrator'}" for (process, _), listener in listeners(config).items()]
    lines.append(f"  {topology.orchestrator_model}  orchestrator, CPU{_on(topology.orchestrator_host)}")
    for group in topology.groups:
        lines.append(f"  {group.triton_model}  {_placement(group)}")
        for name in group.stages:
            lines += _stage_lines(config, topology, name)
    return lines


def _memory_lines(config: PipelineConfig) -> list[str]:
    """Who asks for how much of each GPU's memory."""
    from omni_python.config.memory import memory_shares, share_table

    lines = []
    for host in config.hosts or ("",):
        for gpu, shares in memory_shares(config, host).items():
            lines.append(f"  memory of GPU {gpu}{_on(host)}")
            lines += [f"    {line}" for line in share_table(shares)]
    return lines


def _placement(group: ProcessGroup) -> str:
    ranks = f", processes {', '.join(group.rank_processes)}" if group.tp_size > 1 else ""
    ranks += _on(group.host)
    if group.replicas == 1:
        return f"process {group.name}, {_gpus(group.gpus)}{ranks}"
    where = "; ".join(f"{group.replica_name(i)} {_gpus(gpus)}" for i, gpus in enumerate(group.replica_gpus))
    return f"process {group.name}, replicas {where}{ranks}"


def _on(host: str) -> str:
    return f" on {host}" if host else ""


def _gpus(gpus: tuple[int, ...]) -> str:
    return f"GPU {', '.join(map(str, gpus))}" if gpus else "CPU"


def _stage_lines(config: PipelineConfig, topology: Topology, name: str) -> list[str]:
    from omni_python.relay.ways import explain as ways_of

    stage = config.stage(name)
    marks = [mark for mark, holds in (("entry", name == topology.entry_stage), ("terminal", stage.terminal)) if holds]
    lines = [_noted(f"    {name}", marks)]
    if stage.wait_for:
        chosen = ", as the request needs" if stage.wait_for_fn else ""
        lines.append(f"      waits for {', '.join(stage.wait_for)}{chosen}")
    for edge in topology.edges_from(name):
        kind = "result" if edge.kind == "next" else "stream"
        notes = ["same process"] * edge.same_process
        if edge.kind == "next" and stage.route_fn:
            notes.append("as the request needs")
        lines.append(_noted(f"      {kind} -> {edge.target}", notes))
        lines += [f"        {way.payload}: {way.relay}, {way.reason}" for way in ways_of(config, topology, edge)]
    return lines


def _noted(text: str, notes: list[str]) -> str:
    return f"{text}  ({', '.join(notes)})" if notes else text
