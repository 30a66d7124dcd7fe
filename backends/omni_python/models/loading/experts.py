"""The experts' weights of a mixture, as published and as the layers have them."""

from __future__ import annotations

import re

import torch

from omni_python.models.loading.checkpoint import CheckpointError

_EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(gate_proj|up_proj|down_proj)\.weight")


def fuse_experts(tensors: dict[str, torch.Tensor]) -> None:
    """Replace each layer's experts in `tensors` by two tensors (`gate_up_proj`, `down_proj`), as `Experts` has them.

    Published checkpoints hold three matrices an expert; those that newer transformers write are fused already. In place
    and layer by layer, for a GPU that can hold the model cannot hold its experts twice.
    """
    apart: dict[str, dict[str, dict[int, str]]] = {}
    for name in tensors:
        if match := _EXPERT.fullmatch(name):
            stem, expert, part = match.groups()
            apart.setdefault(stem, {}).setdefault(part, {})[int(expert)] = name
    for stem, parts in apart.items():
        gate, up, down = (
            torch.stack([tensors.pop(name) for name in _in_order(stem, part, parts.get(part, {}))])
            for part in ("gate_proj", "up_proj", "down_proj")
        )
        tensors[f"{stem}gate_up_proj"] = torch.cat((gate, up), dim=1)
        tensors[f"{stem}down_proj"] = down


def _in_order(stem: str, part: str, experts: dict[int, str]) -> list[str]:
    missing = sorted(set(range(max(experts, default=0) + 1)) - set(experts))
    if missing:
        raise CheckpointError(f"the checkpoint has no {stem}{missing[0]}.{part}.weight")
    return [experts[index] for index in range(len(experts))]
