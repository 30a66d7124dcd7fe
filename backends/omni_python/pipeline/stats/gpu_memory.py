"""What the stages of a process take of their GPU's memory, beside what they may: figures for /metrics."""

from __future__ import annotations

from collections.abc import Mapping

from omni_python.config.memory import memory_shares
from omni_python.config.schema import PipelineConfig
from omni_python.config.topology import resolve_topology


class GpuMemory:
    """Of rank 0 of one replica of a process, as torch's allocator counts it; CUDA's context comes on top.

    `fractions` are the stages' shares of the GPU. Nothing is asked of CUDA before the first stage was built.
    """

    def __init__(self, gpu: int, fractions: Mapping[str, float]) -> None:
        self.gpu = gpu
        self.budgets: dict[str, int] = {}
        """Bytes that stages which declare a share may take."""
        self.loaded: dict[str, int] = {}
        """Bytes that were reserved while each stage was built: weights, KV cache, graphs."""
        self._fractions = fractions

    def built(self, stage: str) -> None:
        """A stage was built; the stages of a process are built one after the other."""
        from omni_python.scheduling.device_memory import device_memory  # loads CUDA's libraries

        self.loaded[stage] = self.reserved() - sum(self.loaded.values())
        if stage in self._fractions:
            self.budgets[stage] = int(self._fractions[stage] * device_memory(self.gpu).total)

    def reserved(self) -> int:
        """Bytes that the process has reserved now."""
        import torch

        return torch.cuda.memory_reserved(self.gpu)


def gpu_memory(config: PipelineConfig, process: str, replica: int) -> GpuMemory | None:
    """None for a process on the CPU."""
    group = next(group for group in resolve_topology(config).groups if group.name == process)
    gpus = group.replica_gpus[replica]
    if not gpus:
        return None
    shares = memory_shares(config, group.host)[gpus[0]]
    own = (share for share in shares if share.process == group.replica_name(replica))
    return GpuMemory(gpus[0], {share.stage: share.fraction for share in own if share.fraction is not None})
