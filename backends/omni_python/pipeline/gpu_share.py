"""A process's share of its GPU's memory: free before anything is loaded, and kept to afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from omni_python.config.memory import MemoryShare, memory_shares, share_table
from omni_python.config.schema import PipelineConfig
from omni_python.config.topology import ProcessGroup
from omni_python.proto.errors import Unavailable


def take_gpu_share(config: PipelineConfig, group: ProcessGroup, replica: int = 0) -> None:
    """Call it in the process of that replica of `group`, before its stages are built.

    Nothing is done on the CPU, or where a stage of the process declares no share. Raises `Unavailable` where less
    memory is free than the process's stages ask for together.
    """
    if not group.replica_gpus[replica]:
        return
    gpu, process = group.replica_gpus[replica][0], group.replica_name(replica)
    shares = memory_shares(config, group.host)[gpu]
    fractions = [share.fraction for share in shares if share.process == process]
    if None in fractions:
        return
    from omni_python.scheduling.device_memory import device_memory, limit_process  # loads CUDA's libraries

    memory = device_memory(gpu)
    asked = int(sum(fraction or 0.0 for fraction in fractions) * memory.total)
    check_free(gpu, process, shares, asked, memory.free, memory.total)
    limit_process(gpu, asked)


def check_free(gpu: int, process: str, shares: Sequence[MemoryShare], asked: int, free: int, total: int) -> None:
    """Raise `Unavailable` unless `asked` bytes are `free`; this process's own context is taken already."""
    from omni_python.scheduling.memory_budget import (  # brings torch; orchestrators import this module
        CONTEXT_BYTES,
        gib,
    )

    if asked <= free + CONTEXT_BYTES:
        return
    others = [share for share in shares if share.process != process]
    who = "the other processes of this table, or" if others else "no other stage of this pipeline, but maybe"
    table = "\n".join(f"    {line}" for line in share_table(shares, total))
    raise Unavailable(
        f"process {process} asks for {gib(asked)} of GPU {gpu}, but only {gib(free)} of its {gib(total)} are free; "
        f"the rest may be held by {who} another pipeline or program (nvidia-smi lists them):\n{table}"
    )
