"""What went from stage to stage, and which way: counts for /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from omni_python.proto.messages import Envelope
from omni_python.relay.carrier import relay_of


@dataclass(slots=True)
class EdgeCount:
    """One way of one edge: everything that was sent, and of that the chunks of streams. `nbytes` are those of the
    encoded payloads, none where a neighbour got a reference."""

    source: str
    target: str
    way: str
    payloads: int = 0
    chunks: int = 0
    nbytes: int = 0


class EdgeStats:
    """Each source's edges are counted by one thread at a time; anybody may read."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], EdgeCount] = {}

    def __iter__(self) -> Iterator[EdgeCount]:
        return iter(list(self._counts.values()))

    def by_reference(self, source: str, target: str, is_chunk: bool = False) -> None:
        """A payload was handed to a stage of the same process."""
        self._add(source, target, "local", 0, is_chunk)

    def sent(self, source: str, target: str, envelope: Envelope, is_chunk: bool = False) -> None:
        """A payload went to another process. One whose tensors went two ways (GPU and host) counts on the GPU's; its
        bytes count where they went."""
        nbytes = len(envelope.body)
        ref, device = envelope.ref, envelope.device
        if device is not None:
            self._add(source, target, relay_of(device), nbytes + device.nbytes, is_chunk)
            if ref is not None:
                self._of(source, target, relay_of(ref)).nbytes += ref.nbytes
        elif ref is not None:
            self._add(source, target, relay_of(ref), nbytes + ref.nbytes, is_chunk)
        else:
            self._add(source, target, "inline", nbytes + len(envelope.inline), is_chunk)

    def _add(self, source: str, target: str, way: str, nbytes: int, is_chunk: bool) -> None:
        count = self._counts.get((source, target, way)) or self._of(source, target, way)
        count.payloads += 1
        count.chunks += is_chunk
        count.nbytes += nbytes

    def _of(self, source: str, target: str, way: str) -> EdgeCount:
        return self._counts.setdefault((source, target, way), EdgeCount(source, target, way))
