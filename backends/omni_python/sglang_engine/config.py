"""What an engine is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class EngineConfig:
    """`text_config` describes the decoder in Hugging Face's names; `weights` maps prefixes of the checkpoint's names
    to "model." (layers, norm and `embed_tokens`) and "lm_head.". `gpu_id` None is the CPU.

    `tap`: the hidden state to keep for every token in the cache, counted as in `layers.decoder.Decoder`. `feedback`:
    inputs of decode steps are given by the owner (`StepHooks.decode_embeds`), so nothing of them is ever cached
    for others or computed again, and no prompt is cut into pieces.

    `dummy`: the weights are random, and nothing of the checkpoint is read.

    `tp_rank` of `tp_size` processes that hold a shard each (see `parallel`) and find each other at `tp_port` of
    127.0.0.1; all but `gpu_id` is the same in the others.
    """

    text_config: Mapping[str, Any]
    checkpoint: Path
    weights: Mapping[str, str]
    dtype: torch.dtype
    gpu_id: int | None
    max_running: int
    kv_tokens: int
    prefill_tokens: int
    deepstack_layers: int = 0
    tap: int | None = None
    feedback: bool = False
    dummy: bool = False
    tp_rank: int = 0
    tp_size: int = 1
    tp_port: int | None = None
