"""Which parts of a pool are free."""

from __future__ import annotations

import bisect


class Space:
    """First fit at the lowest offset (the warmest pages). Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        """Bytes, not all of them in one part."""
        self.parts: list[tuple[int, int]] = [(0, capacity)]
        """(offset, length) of what is free, sorted, never adjacent."""

    def take(self, length: int) -> int | None:
        """The offset of `length` bytes that are free no more; None where no part is that long."""
        for index, (offset, extent) in enumerate(self.parts):
            if extent >= length:
                if extent == length:
                    del self.parts[index]
                else:
                    self.parts[index] = (offset + length, extent - length)
                self.free -= length
                return offset
        return None

    def give_back(self, offset: int, length: int) -> None:
        """What `take` took, whole."""
        index = bisect.bisect(self.parts, (offset, 0))
        self.free += length
        if index < len(self.parts) and self.parts[index][0] == offset + length:
            length += self.parts.pop(index)[1]
        if index and sum(self.parts[index - 1]) == offset:
            before = self.parts[index - 1]
            self.parts[index - 1] = (before[0], before[1] + length)
        else:
            self.parts.insert(index, (offset, length))
