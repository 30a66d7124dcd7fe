"""What a process may take of a GPU's memory, on a GPU; in a process of its own, since the bound stays."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

CHILD = """
import torch
from omni_python.scheduling.device_memory import StageMemory, device_memory, limit_process
from omni_python.scheduling.memory_budget import CONTEXT_BYTES

total = device_memory(0).total
share = CONTEXT_BYTES + (512 << 20)
limit_process(0, share)
first = StageMemory(0, share / total)
weights = torch.empty(256 << 20, dtype=torch.uint8, device="cuda:0")
assert abs(first.share - (512 << 20)) < 2, first.share
assert 256 << 20 <= first.held() <= 260 << 20, first.held()
second = StageMemory(0, share / total)
assert abs(second.share - share) < 2, "the first stage paid for the context"
assert second.held() == 0
torch.empty(200 << 20, dtype=torch.uint8, device="cuda:0")
try:
    torch.empty(300 << 20, dtype=torch.uint8, device="cuda:0")
except torch.cuda.OutOfMemoryError:
    print("bounded")
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: pytest -m gpu where there is one")
def test_a_process_keeps_to_its_share() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "bounded", done.stderr
