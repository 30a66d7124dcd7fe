"""How the kernels are launched."""

from __future__ import annotations

import triton

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels are run by Triton's interpreter, on the CPU (TRITON_INTERPRET=1)."""

OVERLAPPED = not INTERPRETED
"""Whether a kernel may begin while the one before it still runs; needs compute capability 9.0."""


def options(warps: int = 4, stages: int = 1) -> dict[str, object]:
    """Keyword arguments of every launch."""
    if INTERPRETED:
        return {}
    return {"num_warps": warps, "num_stages": stages, "launch_pdl": OVERLAPPED}


def divisor(size: int, limit: int) -> int:
    """The largest power of two that divides `size` and is at most `limit`."""
    return min(size & -size, limit)
