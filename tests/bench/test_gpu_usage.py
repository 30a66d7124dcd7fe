"""GPU time, of a GPU that is kept busy."""

from __future__ import annotations

import os
import time

import psutil
import pytest
import torch

from omni_python.bench.usage import UsageSampler


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: pytest -m gpu where there is one")
def test_a_busy_gpu_is_seen() -> None:
    values = torch.randn(4096, 4096, device="cuda")
    start = time.monotonic()
    with UsageSampler(psutil.Process(os.getpid()), []) as usage:
        while time.monotonic() - start < 4:
            values = torch.tanh(values @ values)
            torch.cuda.synchronize()
    end = time.monotonic()
    found = usage.gpus(start + 1.5, end)
    assert max(gpu.busy for gpu in found) > 0.5
    assert all(0 <= gpu.busy <= 1 and gpu.memory_mib > 100 and gpu.name for gpu in found)
