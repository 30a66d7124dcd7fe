"""The code predictor by the fused kernels: the same function as `CodePredictor`'s plain one, up to rounding."""

from __future__ import annotations

import torch

from omni_python.layers.fused_decoder import MAX_ROWS
from omni_python.layers.fused_frame_completer import FusedFrameCompleter
from omni_python.models.qwen3_omni.talker import RESIDUAL_TOP_K, RESIDUAL_TOP_P, CodePredictor


class FusedCodePredictor:
    """Completes frames of at most MAX_ROWS rows."""

    def __init__(self, predictor: CodePredictor) -> None:
        decoder = predictor.model
        heads = [head.get_parameter("weight") for head in predictor.lm_head]
        embeddings = [part.get_parameter("weight") for part in decoder.codec_embedding]
        self._completer = FusedFrameCompleter(decoder, heads, embeddings, most=RESIDUAL_TOP_K)
        device = decoder.norm.weight.device
        self._top_p = torch.full((MAX_ROWS,), RESIDUAL_TOP_P, device=device)
        self._top_k = torch.full((MAX_ROWS,), RESIDUAL_TOP_K, dtype=torch.int32, device=device)

    def __call__(
        self, hidden: torch.Tensor, first: torch.Tensor, sampled: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `CodePredictor.forward`: codes int64 [B, groups - 1], and the sum of their embeddings [B, H]."""
        rows = len(hidden)
        return self._completer(hidden, first, sampled.float(), self._top_p[:rows], self._top_k[:rows], uniforms)
