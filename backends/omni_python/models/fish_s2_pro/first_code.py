"""How a frame's first code is chosen: with a penalty for recent ones, and once anew where it is one of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from omni_python.model_runner.sampler import RowSampling, choose_tokens

RECENT = 16
"""Tokens that the repetition penalty is for; one of them that is drawn again is drawn anew, once, as follows. All three
are SGLang-Omni's values for S2-Pro (repetition-aware sampling: Chen et al. 2024, VALL-E 2)."""
AGAIN_TEMPERATURE, AGAIN_TOP_P = 1.0, 0.9


def choose_first(
    logits: torch.Tensor, rows: RowSampling, again: torch.Tensor, seen: torch.Tensor, suppressed: torch.Tensor
) -> torch.Tensor:
    """int64 [B] from float32 `logits` [B, V], by plain operations. `again` [B] are the second draw's random numbers;
    bool [B, V] are `seen`, the recent tokens, and `suppressed`, those not to be chosen."""
    tokens = choose_tokens(logits, rows, seen, suppressed)
    anew = replace(
        rows,
        temperature=torch.full_like(rows.temperature, AGAIN_TEMPERATURE),
        top_p=torch.full_like(rows.top_p, AGAIN_TOP_P),
        uniforms=again,
    )
    repeated = rows.sampled & seen.gather(1, tokens[:, None])[:, 0]
    return torch.where(repeated, choose_tokens(logits, anew, seen, suppressed), tokens)
