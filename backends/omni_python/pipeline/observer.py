"""What a stage process notes of the requests that it works on, beside working on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from omni_python.pipeline.read_only import ReadOnlyCheck
from omni_python.pipeline.recording.recorder import Recorder, record_directory
from omni_python.pipeline.stage import Stage
from omni_python.pipeline.stats.edges import EdgeStats
from omni_python.pipeline.timings import Timings
from omni_python.pipeline.tracing.process import ProcessTraces
from omni_python.proto.messages import DataReadyMessage, RecordOrder, SubmitMessage
from omni_python.proto.payload import Payload
from omni_python.proto.trace import ORCHESTRATOR, StageRecord


class Observer:
    """When the stages worked and what went over the edges, of every request; traces and recordings of those that are
    traced or recorded; and, where that is wanted, whether stages leave their inputs as they are.

    `report(request_id, records)` is called with the process's part of a trace when it is done with the request.
    """

    def __init__(
        self,
        pipeline: str,
        process: str,
        stages: Mapping[str, Stage],
        report: Callable[[str, tuple[StageRecord, ...]], None],
    ) -> None:
        self.edges = EdgeStats()
        self.timings = Timings()
        self._stages = stages
        self._traces = ProcessTraces(stages, report)
        self._traced = self._traces.requests
        self._read_only = ReadOnlyCheck.if_wanted()
        recordings = record_directory()
        self._recorder = None if recordings is None else Recorder(recordings, pipeline, process, stages)

    def __len__(self) -> int:
        """Requests of which something is noted."""
        return max(len(self.timings), len(self._traced))

    def stop(self) -> None:
        if self._recorder is not None:
            self._recorder.close()

    # -- what comes from other processes

    def submitted(self, message: SubmitMessage) -> None:
        """A request is about to be given to the entry stage."""
        if message.record is not None:
            self._record(message.request_id, message.record)
        if message.traced:
            self._traces.open(message.request_id)
            self._traces.arrived(message.request_id, ORCHESTRATOR, message.stage, stream=False)

    def arrived(self, message: DataReadyMessage) -> None:
        """An input is about to be given to a stage."""
        self.timings.heard(message.request_id, message.timings)
        if message.traced:
            self._traces.open(message.request_id)
            if not message.is_done:
                self._traces.arrived(message.request_id, message.source, message.target, stream=message.chunk_id >= 0)
        if message.record is not None:
            self._record(message.request_id, message.record)

    def _record(self, request_id: str, order: RecordOrder) -> None:
        if self._recorder is not None:
            self._recorder.arriving(request_id, order)

    # -- what stages make

    def hand_over(self, source: str, target: str, request_id: str, payload: Payload, is_chunk: bool) -> Payload:
        """A stage gives a payload to one of the same process: what to hand over in its place."""
        if self._traced:
            self._traces.sent(request_id, source, target, is_chunk)
            self._traces.arrived(request_id, source, target, is_chunk)
        self.edges.by_reference(source, target, is_chunk)
        if self._read_only is None or self._stages[target].is_over(request_id):
            return payload
        return self._read_only.lend(source, target, request_id, payload)

    def sends(self, source: str, target: str, request_id: str, stream: bool) -> None:
        """A stage is about to send a payload to another process."""
        if self._traced:
            self._traces.sent(request_id, source, target, stream)

    def finished(self, stage: str, request_id: str) -> None:
        """A stage has its result."""
        self.timings.gave(request_id, stage, result=True)
        if self._traced:
            self._traces.finished(request_id, stage)

    def check_inputs(self, stage: str, request_id: str) -> None:
        """A stage is done with its inputs. Raises `OmniError` if it is seen to have written to them."""
        if self._read_only is not None:
            self._read_only.check(stage, request_id)

    def is_traced(self, request_id: str) -> bool:
        return request_id in self._traced

    def order(self, request_id: str) -> RecordOrder | None:
        """What other processes are to record of a request."""
        return None if self._recorder is None else self._recorder.order(request_id)

    # -- the end

    def closed(self, request_id: str) -> None:
        """A stage is done with a request."""
        if self._traced:
            self._traces.closed(request_id)
        if self._read_only is not None:
            for name, stage in self._stages.items():
                if stage.is_over(request_id):
                    self._read_only.discard(name, request_id)

    def over(self, request_id: str) -> None:
        """No stage of the process has the request open any more."""
        self.timings.drop(request_id)
        if self._traced:
            self._traces.close(request_id)
        if self._recorder is not None:
            self._recorder.over(request_id)
