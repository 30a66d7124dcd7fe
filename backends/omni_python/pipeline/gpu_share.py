"""A process's share of its GPU's memory: free before anything is loaded, and kept to afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from omni_python.config.memory import MemoryShare, memory_shares, share_table
from omni_python.config.schema import PipelineConfig
from omni_python.config.topology import ProcessGroup
from omni_python.proto.errors import Unavailable
from omni_python.scheduling.memory_budget import CONTEXT_BYTES, gib


def take_gpu_share(config: PipelineConfig, group: ProcessGroup, rank: int = 0) -> None:
    """Call it in the process of `group`'s `rank`, before its stages are built.

    Nothing is done on the CPU, or where a stage of the process declares no share. Raises `Unavailable` where less
    memory is free than the process's stages ask for together.
    """
    if not group.gpus:
        return
    gpu = group.gpus[rank]
    shares = memory_shares(config)[gpu]
    fractions = [share.fraction for share in shares if share.stage in group.stages]
    if None in fractions:
        return
    from omni_python.scheduling.device_memory import device_memory, limit_process  # loads CUDA's libraries

    memory = device_memory(gpu)
    asked = int(sum(fraction or 0.0 for fraction in fractions) * memory.total)
    check_free(gpu, group, shares, asked, memory.free, memory.total)
    limit_process(gpu, asked)


def check_free(gpu: int, group: ProcessGroup, shares: Sequence[MemoryShare], asked: int, free: int, total: int) -> None:
    """Raise `Unavailable` unless `asked` bytes are `free`; this process's own context is taken already."""
    if asked <= free + CONTEXT_BYTES:
        return
    others = [share for share in shares if share.stage not in group.stages]
    who = "the stages of other processes in this table, or" if others else "no other stage of this pipeline, but maybe"
    table = "\n".join(f"    {line}" for line in share_table(shares, total))
    raise Unavailable(
        f"process {group.name} asks for {gib(asked)} of GPU {gpu}, but only {gib(free)} of its {gib(total)} are free; "
        f"the rest may be held by {who} another pipeline or program (nvidia-smi lists them):\n{table}"
    )
