"""How large the KV cache of an autoregressive stage is."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import nn

from omni_python.layers.decoder import DecoderConfig
from omni_python.scheduling.device_memory import StageMemory
from omni_python.scheduling.memory_budget import GRAPH_BYTES, KVBudget, kv_bytes_per_token, prefill_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KVNeeds:
    """What of a stage decides its KV cache: `context` is the longest sequence, `default_tokens` the cache where the
    stage has no share of a GPU's memory to fill. `kept_per_token` are bytes that an engine keeps for each token
    beside keys and values."""

    stage: str
    decoder: DecoderConfig
    dtype: torch.dtype
    context: int
    max_running: int
    prefill_tokens: int
    default_tokens: int
    kept_per_token: int = 0

    def tokens(self, asked: int | None, memory: StageMemory | None, weights: int | None = None) -> int:
        """`asked` tokens, or as many as fit into the stage's `memory` beside its `weights` (bytes; None: what it has
        loaded).

        Raises `InvalidArgument` where they do not fit.
        """
        if memory is None:
            return self.default_tokens if asked is None else asked
        size = self.dtype.itemsize
        budget = KVBudget(
            stage=self.stage,
            share=memory.share,
            weights=memory.held() if weights is None else weights,
            reserve=GRAPH_BYTES + prefill_bytes(self.decoder, self.prefill_tokens, size),
            bytes_per_token=kv_bytes_per_token(self.decoder, size) + self.kept_per_token,
        )
        tokens = budget.tokens(asked, most=self.max_running * self.context)
        logger.info("the %s has %d tokens of KV cache, of %d that fit: %s", self.stage, tokens, budget.largest, budget)
        return tokens


def parameter_bytes(module: nn.Module, dtype: torch.dtype) -> int:
    """Bytes of the module's weights in `dtype`; it may be on the meta device."""
    return sum(weight.numel() for weight in module.parameters()) * dtype.itemsize
