"""What the stages of a pipeline ask of their GPUs' memory: shares that each declares, and the rule that they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from omni_python.config.declaration import PipelineDeclaration, StageConfig
from omni_python.config.errors import Problem, listed
from omni_python.config.placement import stage_arguments
from omni_python.config.topology import process_groups

MEMORY_FRACTION = "total_gpu_memory_fraction"
"""The factory argument by which a stage declares its share (0 to 1) of its GPU's memory."""

# Fractions are decimal numbers that people write; their sum may miss 1 by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class MemoryShare:
    """What one stage asks of one GPU; `fraction` is None where it declares nothing."""

    stage: str
    process: str
    fraction: float | None


def memory_shares(config: PipelineDeclaration, host: str = "") -> dict[int, tuple[MemoryShare, ...]]:
    """The stages on each GPU of a host ("" for a pipeline on one), once for each replica, in the order of their
    declaration; a fraction that is no number above 0 is None."""
    group_of = {stage: group for group in process_groups(config) for stage in group.stages}
    shares: dict[int, list[MemoryShare]] = {}
    for stage in config.stages:
        if config.host_of(stage) != host:
            continue
        given = stage_arguments(config, stage).get(MEMORY_FRACTION)
        fraction = float(given) if _is_fraction(given) else None
        for replica in range(stage.replicas):
            process = group_of[stage.name].replica_name(replica)
            for gpu in dict.fromkeys(stage.replica_gpus(replica)):
                shares.setdefault(gpu, []).append(MemoryShare(stage.name, process, fraction))
    return {gpu: tuple(shares[gpu]) for gpu in sorted(shares)}


def share_table(shares: Sequence[MemoryShare], total_bytes: int | None = None) -> list[str]:
    """Lines for people: stage, process and fraction of each, and GiB where the GPU's `total_bytes` are known."""
    rows = [("stage", "process", "fraction", "GiB")]
    for share in shares:
        rows.append((share.stage, share.process, *_amount(share.fraction, total_bytes)))
    rows.append(("total", "", *_amount(sum(share.fraction or 0.0 for share in shares), total_bytes)))
    columns = 3 if total_bytes is None else 4
    widths = [max(len(row[column]) for row in rows) for column in range(columns)]
    return ["  ".join(row[column].ljust(widths[column]) for column in range(columns)).rstrip() for row in rows]


def check_memory(config: PipelineDeclaration) -> Iterator[Problem]:
    """What is wrong with the shares, in a pipeline whose stages have unique names."""
    for stage in config.stages:
        fraction = stage_arguments(config, stage).get(MEMORY_FRACTION)
        if fraction is not None and not _is_fraction(fraction):
            yield Problem(_path(config, stage), f"must be a number above 0 and at most 1, not {fraction!r}")
    for host in config.hosts or ("",):
        yield from _check_host(config, host)


def _check_host(config: PipelineDeclaration, host: str) -> Iterator[Problem]:
    where = f" of host {host!r}" if host else ""
    for gpu, shares in memory_shares(config, host).items():
        sharing = list(dict.fromkeys(share.process for share in shares))
        if len(sharing) > 1:
            for name in dict.fromkeys(share.stage for share in shares):
                stage = config.stage(name)
                if stage_arguments(config, stage).get(MEMORY_FRACTION) is None:
                    yield Problem(
                        _path(config, stage),
                        f"is required, since processes {listed(sharing)} share GPU {gpu}{where}: each stage on it "
                        "declares its share of the memory (above 0, at most 1 together)",
                    )
        declared = [share for share in shares if share.fraction is not None]
        asked = sum(share.fraction or 0.0 for share in declared)
        if asked > 1 + _ROUNDING:
            table = "\n".join(f"    {line}" for line in share_table(declared))
            yield Problem(
                _path(config, config.stage(declared[-1].stage)),
                f"the shares of GPU {gpu}{where} add up to {asked:g}, more than 1:\n{table}",
            )


def _amount(fraction: float | None, total_bytes: int | None) -> tuple[str, str]:
    if fraction is None:
        return "not declared", ""
    return f"{fraction:.6g}", "" if total_bytes is None else f"{fraction * total_bytes / 2**30:.2f}"


def _is_fraction(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def _path(config: PipelineDeclaration, stage: StageConfig) -> str:
    if MEMORY_FRACTION in config.runtime_overrides.get(stage.name, {}):
        return f"runtime_overrides.{stage.name}.{MEMORY_FRACTION}"
    return f"stages.{stage.name}.factory_args.{MEMORY_FRACTION}"
