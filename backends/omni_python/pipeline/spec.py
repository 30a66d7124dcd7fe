"""What the coordinator needs to know of a pipeline, and the bounds that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from omni_python.config.topology import replica_name
from omni_python.proto.errors import OmniError
from omni_python.proto.request import OmniRequest


@dataclass(frozen=True)
class PipelineSpec:
    """`stages` maps each process to the stages in it, `replicas` to how many of it there are; `feeders` maps each
    terminal stage to all stages that its result depends on, itself included."""

    name: str
    entry_stage: str
    stages: Mapping[str, tuple[str, ...]]
    replicas: Mapping[str, int]
    feeders: Mapping[str, frozenset[str]]
    terminal_stages_fn: Callable[[OmniRequest], Collection[str] | None] | None = None
    _needed: dict[frozenset[str], frozenset[str]] = field(default_factory=dict, repr=False, compare=False)

    def replica_name(self, process: str, replica: int) -> str:
        return replica_name(process, replica, self.replicas[process])

    def active_terminals(self, request: OmniRequest) -> frozenset[str]:
        """The terminal stages that answer this request."""
        chosen = self.terminal_stages_fn(request) if self.terminal_stages_fn else None
        if chosen is None:
            return frozenset(self.feeders)
        active = frozenset((chosen,) if isinstance(chosen, str) else chosen)
        if not active or not active <= self.feeders.keys():
            raise OmniError(f"terminal_stages_fn returned {sorted(active)}; it must choose from {list(self.feeders)}")
        return active

    def fed_by(self, stages: Collection[str]) -> frozenset[str]:
        """The terminal stages whose results depend on one of these stages."""
        return frozenset(terminal for terminal, feeders in self.feeders.items() if feeders.intersection(stages))

    def unneeded(self, terminals: Collection[str]) -> tuple[str, ...]:
        """The stages that none of these terminal stages depends on."""
        needed = frozenset().union(*(self.feeders[terminal] for terminal in terminals))
        return tuple(stage for stages in self.stages.values() for stage in stages if stage not in needed)

    def needed_processes(self, terminals: frozenset[str]) -> frozenset[str]:
        """The processes that a request with these terminals may touch."""
        processes = self._needed.get(terminals)
        if processes is None:
            needed = frozenset().union(*(self.feeders[terminal] for terminal in terminals))
            touched = (process for process, stages in self.stages.items() if needed.intersection(stages))
            processes = self._needed[terminals] = frozenset(touched)
        return processes


@dataclass(frozen=True)
class Limits:
    """Admission and time: `max_in_flight` requests are worked on at once and `max_queued` more wait for their turn;
    `deadline` seconds are for each of them, waiting included, unless it asks for less. `grace` seconds to wait for
    stage processes that are not there (yet, or again), and `silence` seconds without a heartbeat after which a process
    counts as stuck and is killed."""

    max_in_flight: int = 256
    max_queued: int = 256
    deadline: float = 600.0
    grace: float = 10.0
    silence: float = 15.0
    submit_threads: int = 8
    sender_threads: int = 2
