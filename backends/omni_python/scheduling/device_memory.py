"""What CUDA says of a GPU's memory, and the bound that a process keeps. The arithmetic is in `memory_budget`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_python.scheduling.memory_budget import CONTEXT_BYTES


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a whole card: of all processes, not of this one alone."""

    free: int
    total: int


def device_memory(gpu: int) -> DeviceMemory:
    """Makes the process's context on the GPU where there is none yet; `free` is what is left beside it."""
    free, total = torch.cuda.mem_get_info(gpu)
    return DeviceMemory(free, total)


def limit_process(gpu: int, share: int) -> None:
    """Hold this process's allocator to `share` bytes of the GPU, less what it does not allocate itself.

    It covers CUDA graphs: their tensors lie in pools of the same allocator, which counts all that it has reserved.
    A step that would need more fails with torch's OutOfMemoryError, after cached blocks were given back.
    """
    fraction = max(share - CONTEXT_BYTES, 0) / device_memory(gpu).total
    torch.cuda.set_per_process_memory_fraction(min(1.0, fraction), gpu)


class StageMemory:
    """One stage's share of its GPU. Make it before the stage loads anything, since it counts from then on.

    Stages of one process are built one after the other, so what is reserved between the making of a `StageMemory` and
    a call of `held` is the stage's own.
    """

    def __init__(self, gpu: int, fraction: float) -> None:
        self._gpu = gpu
        total = device_memory(gpu).total
        self._before = torch.cuda.memory_reserved(gpu)
        self.share = int(fraction * total) - (0 if self._before else CONTEXT_BYTES)
        """Bytes for the stage's own tensors."""

    def held(self) -> int:
        """Bytes that the stage holds by now; what is merely cached is given back first."""
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._gpu) - self._before


def stage_memory(gpu: int | None, fraction: float | None) -> StageMemory | None:
    """None for a stage on the CPU, or one that declares no share: it then has no bound."""
    return None if gpu is None or fraction is None else StageMemory(gpu, fraction)
