"""Where what a stage's scheduler gives goes: to which stages, as which chunk, and no more to those that are lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from omni_python.pipeline.stage_spec import StageOutlet, StageSpec
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.payload import Payload


@dataclass(slots=True)
class OpenRequest:
    """A request that a stage has. Chunks are counted by source, and by target."""

    deadline: float
    queued: bool = False
    gave: bool = False
    chunks_in: dict[str, int] = field(default_factory=dict)
    chunks_out: dict[str, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """Targets that are not there."""


class Routing:
    """A stage's outputs on their way to others. `requests` is the stage's own: those that it has.

    A target that is not there fails in its own name, and the stage goes on: what others make of its output may still be
    wanted, and the coordinator tells if it is not.
    """

    def __init__(self, spec: StageSpec, outlet: StageOutlet, requests: Mapping[str, OpenRequest]) -> None:
        self._spec = spec
        self._outlet = outlet
        self._requests = requests

    def chunk(self, request_id: str, target: str | None, payload: Payload) -> None:
        """One thread at a time calls this for a request. Without a target it is for the client."""
        spec, outlet = self._spec, self._outlet
        request = self._requests.get(request_id)
        if request is None:
            return
        if not request.gave:
            request.gave = True
            outlet.gave(spec.name, request_id)
        if target is None:
            if not spec.terminal:
                raise OmniError("only a terminal stage may stream to the client; name a stage of stream_to")
            outlet.send_to_client(spec.name, request_id, payload)
            return
        if target not in spec.stream_to:
            raise OmniError(f"streamed to {target}, which is not in stream_to ({', '.join(spec.stream_to)})")
        chunk_id = request.chunks_out.get(target, 0)
        request.chunks_out[target] = chunk_id + 1
        self._send(target, request_id, partial(outlet.send_chunk, spec.name, target, request_id, chunk_id, payload))

    def result(self, request_id: str, output: Payload) -> None:
        """The end of each stream, and the result itself, to the stages that follow."""
        spec, outlet = self._spec, self._outlet
        done_targets = spec.stream_done_targets(request_id, output)
        targets = spec.targets(request_id, output)
        request = self._requests.get(request_id)
        if request is None:
            return
        for target in done_targets:
            sent = request.chunks_out.get(target, 0)
            self._send(target, request_id, partial(outlet.send_stream_done, spec.name, target, request_id, sent))
        for target in targets:
            project = spec.project.get(target)
            part = project(output) if project else output
            self._send(target, request_id, partial(outlet.send_payload, spec.name, target, request_id, part))

    def _send(self, target: str, request_id: str, send: Callable[[float], None]) -> None:
        """`send(deadline)`, unless the target was lost before, or the request is over."""
        request = self._requests.get(request_id)
        if request is None or target in request.lost:
            return
        try:
            send(request.deadline)
        except Unavailable as error:
            request.lost.add(target)
            if request_id in self._requests:
                self._outlet.send_failure(target, request_id, error)
