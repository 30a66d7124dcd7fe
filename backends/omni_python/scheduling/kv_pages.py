"""Who holds which pages of a KV cache."""

from __future__ import annotations


class PagePool:
    """Hands out page numbers 0..`num_pages` - 1."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def used(self) -> int:
        return self.num_pages - len(self._free)

    def take(self, count: int) -> list[int] | None:
        """`count` pages, or None where there are not that many."""
        if count > len(self._free):
            return None
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def give_back(self, pages: list[int]) -> None:
        self._free += pages
