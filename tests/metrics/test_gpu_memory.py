"""Shares of a GPU as metrics, and what the allocator says of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.pipeline.stats.gpu_memory import gpu_memory

CHILD = """
import torch
from omni_python.pipeline.stats.gpu_memory import GpuMemory

memory = GpuMemory(0, {"thinker": 0.5})
assert memory.reserved() == 0 and not torch.cuda.is_initialized()
kept = []
for stage, mib in (("thinker", 100), ("decode", 0), ("talker", 60)):
    if mib:
        kept.append(torch.empty(mib << 20, dtype=torch.uint8, device="cuda:0"))
    memory.built(stage)
total = torch.cuda.get_device_properties(0).total_memory
assert memory.loaded == {"thinker": 100 << 20, "decode": 0, "talker": 60 << 20}, memory.loaded
assert memory.budgets.keys() == {"thinker"} and abs(memory.budgets["thinker"] - total / 2) < 0.02 * total
assert memory.reserved() == 160 << 20
print("fits")
"""


def test_a_process_on_the_cpu_has_none(tmp_path: Path) -> None:
    config = Qwen3OmniSpeechPipelineConfig(model_path=str(tmp_path))
    assert all(gpu_memory(config, process, 0) is None for process in ("front", "thinker", "speech"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: pytest -m gpu where there is one")
def test_what_stages_take() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "fits", done.stderr
