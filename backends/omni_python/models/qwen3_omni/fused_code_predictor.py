"""The code predictor by the fused kernels: the same function as `CodePredictor`'s plain one, up to rounding."""

from __future__ import annotations

import torch

from omni_python.layers.fused_decoder import MAX_ROWS, FusedDecoder, fold_gain
from omni_python.layers.kernels.attention import Where
from omni_python.layers.kernels.codes import draw_codes
from omni_python.layers.kernels.linear import linear
from omni_python.layers.kv_cache import PAGE_TOKENS
from omni_python.models.qwen3_omni.talker import RESIDUAL_TOP_K, RESIDUAL_TOP_P, CodePredictor


class FusedCodePredictor:
    """Completes frames of at most MAX_ROWS rows. Every row starts anew with every frame, in pages of its place."""

    def __init__(self, predictor: CodePredictor) -> None:
        decoder = predictor.model
        device = decoder.norm.weight.device
        self._predictor = predictor
        self._decoder = FusedDecoder(decoder, MAX_ROWS, splits=1)
        self._heads = [head.get_parameter("weight").detach() for head in predictor.lm_head]
        self._embeddings = [part.get_parameter("weight").detach() for part in decoder.codec_embedding]
        fold_gain(decoder.norm, *self._heads)
        groups = predictor.groups
        pages = -(-(groups + 1) // PAGE_TOKENS)
        self._cache = decoder.new_cache(MAX_ROWS * pages)
        self._page_table = torch.arange(MAX_ROWS * pages, dtype=torch.int32, device=device).view(MAX_ROWS, pages)
        self._rows = torch.arange(MAX_ROWS, dtype=torch.int32, device=device)
        angles = decoder.rotary.angles(torch.arange(groups + 1, device=device).expand(3, -1))
        begin = angles[:2].repeat(MAX_ROWS, 1)
        self._angles = [begin, *(angles[place].repeat(MAX_ROWS, 1) for place in range(2, groups + 1))]
        self._turns = [(a.cos().contiguous(), a.sin().contiguous()) for a in self._angles]
        self._past = [
            torch.full((MAX_ROWS,), past, dtype=torch.int32, device=device) for past in (0, *range(2, groups + 1))
        ]

    def __call__(
        self, hidden: torch.Tensor, first: torch.Tensor, sampled: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `CodePredictor.forward`: codes int64 [B, groups - 1], and the sum of their embeddings [B, H]."""
        predictor = self._predictor
        rows = len(hidden)
        eps = predictor.model.config.norm_eps
        codes = torch.empty(rows, predictor.groups - 1, dtype=torch.int64, device=hidden.device)
        total = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        x = torch.stack((hidden, first), dim=1).flatten(0, 1)
        for group in range(predictor.groups - 1):
            new = 2 if group == 0 else 1
            cos, sin = self._turns[group]
            where = Where(self._page_table, self._rows, self._past[group][:rows], cos, sin, new)
            x = self._decoder(x, self._cache, where)
            last = x[1::2].contiguous() if new == 2 else x
            logits = linear(last, self._heads[group], normed=True, eps=eps)
            x = draw_codes(
                logits,
                self._embeddings[group],
                sampled,
                uniforms[:, group],
                RESIDUAL_TOP_K,
                RESIDUAL_TOP_P,
                codes[:, group],
                total,
            )
        return codes, total.to(hidden.dtype)
