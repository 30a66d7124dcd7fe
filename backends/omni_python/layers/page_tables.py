"""The page tables of requests that decode, on the device, where a captured step reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_python.layers.kv_cache import PagedKVCache


class PageTables:
    """`tensor` int32 [max_running + 1, pages]: a row a slot. The last slot is for rows that pad a batch, and has the
    cache's last page alone, which no request may own."""

    def __init__(self, cache: PagedKVCache, max_running: int, device: torch.device) -> None:
        spare = cache.num_pages - 1
        self.tensor = torch.full((max_running + 1, spare + 1), spare, dtype=torch.int32, device=device)
        self._free = list(range(max_running))

    def admit(self, pages: Sequence[int]) -> int:
        """The slot of a request that owns `pages`."""
        slot = self._free.pop()
        self.write(slot, pages)
        return slot

    def write(self, slot: int, pages: Sequence[int]) -> None:
        """Put a request's `pages` into a slot that was chosen elsewhere."""
        self.tensor[slot, : len(pages)] = torch.tensor(pages, dtype=torch.int32).to(self.tensor.device)

    def release(self, slot: int) -> None:
        """The slot is free again."""
        self._free.append(slot)
