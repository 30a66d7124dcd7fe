"""What a stage is told: its part of the pipeline's declaration, and how its outputs leave it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from omni_python.pipeline.fan_in import MergeFn, WaitForFn
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload
from omni_python.proto.timing import StageTiming

RouteFn = Callable[[str, Payload], "str | Collection[str]"]
ProjectFn = Callable[[Payload], Payload]


@dataclass(frozen=True)
class StageSpec:
    """A stage's part of the pipeline's declaration, with its dotted paths resolved to functions."""

    name: str
    next: tuple[str, ...] = ()
    terminal: bool = False
    route_fn: RouteFn | None = None
    wait_for: tuple[str, ...] = ()
    wait_for_fn: WaitForFn | None = None
    merge_fn: MergeFn | None = None
    stream_to: tuple[str, ...] = ()
    stream_done_to_fn: RouteFn | None = None
    project: Mapping[str, ProjectFn] = field(default_factory=dict)

    def targets(self, request_id: str, output: Payload) -> tuple[str, ...]:
        """Where a result goes."""
        return _subset("route_fn", self.route_fn, self.next, request_id, output)

    def stream_done_targets(self, request_id: str, output: Payload) -> tuple[str, ...]:
        """Which stages are told that the stream is over."""
        return _subset("stream_done_to_fn", self.stream_done_to_fn, self.stream_to, request_id, output)


def _subset(
    name: str, choose: RouteFn | None, all_targets: tuple[str, ...], request_id: str, output: Payload
) -> tuple[str, ...]:
    if choose is None:
        return all_targets
    chosen = choose(request_id, output)
    picked = (chosen,) if isinstance(chosen, str) else tuple(chosen or ())
    if not set(picked) <= set(all_targets) or (name == "route_fn" and not picked):
        raise OmniError(f"{name} returned {chosen!r}; it must choose from {list(all_targets)}")
    return picked


class StageOutlet(Protocol):
    """How a stage's outputs leave its process, or reach a neighbour inside it. A request's deadline goes with it.

    Raises `Unavailable` where the target is not there.
    """

    def send_payload(self, source: str, target: str, request_id: str, payload: Payload, deadline: float) -> None: ...
    def send_chunk(
        self, source: str, target: str, request_id: str, chunk_id: int, payload: Payload, deadline: float
    ) -> None: ...
    def send_stream_done(self, source: str, target: str, request_id: str, chunks: int, deadline: float) -> None: ...
    def send_to_client(self, source: str, request_id: str, payload: Payload) -> None: ...
    def send_result(self, source: str, request_id: str, payload: Payload, timings: tuple[StageTiming, ...]) -> None: ...
    def send_failure(self, source: str, request_id: str, error: BaseException) -> None: ...
    def began(self, stage: str, request_id: str) -> None:
        """A stage's scheduler is given the first input."""

    def gave(self, stage: str, request_id: str) -> None:
        """A stage has its first chunk."""

    def finished(self, stage: str, request_id: str) -> None:
        """A stage has its result."""

    def timings(self, request_id: str) -> tuple[StageTiming, ...]:
        """When the stages that have given their results worked, relative to now; not known once all are closed."""

    def check_inputs(self, stage: str, request_id: str) -> None:
        """A stage has computed its result. Raises `OmniError` if it is seen to have written to its inputs."""

    def closed(self, request_id: str) -> None:
        """A stage is done with a request."""
