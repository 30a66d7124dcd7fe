"""A codec frame's completion by the fused kernels: the same function as `FrameCompleter`'s, up to rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_python.layers.decoder import Decoder
from omni_python.layers.fused_decoder import MAX_ROWS, FusedDecoder, fold_gain
from omni_python.layers.kernels.attention import Where
from omni_python.layers.kernels.codes import draw_codes
from omni_python.layers.kernels.linear import linear
from omni_python.layers.kv_cache import PAGE_TOKENS


class FusedFrameCompleter:
    """Completes frames of at most MAX_ROWS rows. Every row starts anew with every frame, in pages of its place."""

    def __init__(
        self,
        decoder: Decoder,
        heads: Sequence[torch.Tensor],
        embeddings: Sequence[torch.Tensor],
        most: int | None = None,
    ) -> None:
        """`heads` and `embeddings` [V, H] are those of each group after the first; groups may share one, but no head
        may be an embedding too, for the gain of the decoder's last norm moves into the heads. `most`: see
        `draw_codes`."""
        device = decoder.norm.weight.device
        self._decoder = FusedDecoder(decoder, MAX_ROWS, splits=1)
        self._eps = decoder.config.norm_eps
        self._heads = [head.detach() for head in heads]
        self._embeddings = [embedding.detach() for embedding in embeddings]
        self._most = most
        fold_gain(decoder.norm, *{head.data_ptr(): head for head in self._heads}.values())
        tokens = len(heads) + 2  # the hidden state, and the codes of all groups
        pages = -(-tokens // PAGE_TOKENS)
        self._cache = decoder.new_cache(MAX_ROWS * pages)
        self._page_table = torch.arange(MAX_ROWS * pages, dtype=torch.int32, device=device).view(MAX_ROWS, pages)
        self._rows = torch.arange(MAX_ROWS, dtype=torch.int32, device=device)
        angles = decoder.rotary.angles(torch.arange(tokens, device=device).expand(3, -1))
        begin = angles[:2].repeat(MAX_ROWS, 1)
        turned = [begin, *(angles[place].repeat(MAX_ROWS, 1) for place in range(2, tokens))]
        self._turns = [(a.cos().contiguous(), a.sin().contiguous()) for a in turned]
        self._past = [
            torch.full((MAX_ROWS,), past, dtype=torch.int32, device=device) for past in (0, *range(2, tokens))
        ]

    def __call__(
        self,
        hidden: torch.Tensor,
        first: torch.Tensor,
        temperature: torch.Tensor,
        top_p: torch.Tensor,
        top_k: torch.Tensor,
        uniforms: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `FrameCompleter.forward`: codes int64 [B, groups - 1], and the sum of their embeddings [B, H].

        `temperature` (0: the likeliest), `top_p` float32 [B], `top_k` [B] (0: all), `uniforms` [B, groups - 1] in 0..1.
        """
        rows = len(hidden)
        top_k = top_k.to(torch.int32)
        codes = torch.empty(rows, len(self._heads), dtype=torch.int64, device=hidden.device)
        total = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        x = torch.stack((hidden, first), dim=1).flatten(0, 1)
        for index, (head, embedding) in enumerate(zip(self._heads, self._embeddings, strict=True)):
            new = 2 if index == 0 else 1
            cos, sin = self._turns[index]
            where = Where(self._page_table, self._rows, self._past[index][:rows], cos, sin, new)
            x = self._decoder(x, self._cache, where)
            last = x[1::2].contiguous() if new == 2 else x
            logits = linear(last, head, normed=True, eps=self._eps)
            x = draw_codes(
                logits, embedding, temperature, top_k, top_p, uniforms[:, index], codes[:, index], total, self._most
            )
        return codes, total.to(hidden.dtype)
