"""The embedding of codec frames whose every code has one, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_python.layers.kernels.launch import OVERLAPPED, options

_BLOCK = 512


def embed_frames(codes: torch.Tensor, embeddings: torch.Tensor, first: torch.Tensor, scale: float) -> torch.Tensor:
    """[rows, H]: `scale` times the sum of the frames' embeddings, `codes` int32 [books, rows].

    Code c of book b has row b * V + c of `embeddings` [books * V, H], that of the first book row c of `first` [V, H]
    too.
    """
    books, rows = codes.shape
    hidden = embeddings.shape[1]
    x = embeddings.new_empty(rows, hidden)
    _embed_frames[(rows, triton.cdiv(hidden, _BLOCK))](
        codes, embeddings, first, x, codes.stride(0), scale, len(embeddings) // books, books, hidden, _BLOCK,
        OVERLAPPED, **options(4),
    )  # fmt: skip
    return x


@triton.jit
def _embed_frames(
    codes_ptr,
    embeddings_ptr,
    first_ptr,
    x_ptr,
    codes_stride,
    scale,
    vocab,
    BOOKS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = h < HIDDEN
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    code = tl.load(codes_ptr + row).to(tl.int64)
    x = tl.load(first_ptr + code * HIDDEN + h, mask=there, other=0.0).to(tl.float32)
    for book in tl.static_range(BOOKS):
        code = tl.load(codes_ptr + book * codes_stride + row).to(tl.int64)
        x += tl.load(embeddings_ptr + (code + book * vocab) * HIDDEN + h, mask=there, other=0.0).to(tl.float32)
    tl.store(x_ptr + row * HIDDEN + h, (x * scale).to(x_ptr.dtype.element_ty), mask=there)
