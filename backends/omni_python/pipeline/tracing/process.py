"""What a stage process notes of the requests that are traced, until it is done with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from omni_python.pipeline.stage import Stage
from omni_python.proto.trace import ORCHESTRATOR, StageRecord
from omni_python.scheduling.work_trace import WorkTrace


class ProcessTraces:
    """A request is traced from the first message that says so, until no stage of the process has it open any more: then
    `report(request_id, records)` is called, on any thread. Thread-safe.

    `requests` maps those that are traced now to their stages' notes; look there before calling anything else.
    """

    def __init__(self, stages: Mapping[str, Stage], report: Callable[[str, tuple[StageRecord, ...]], None]) -> None:
        self.requests: dict[str, dict[str, WorkTrace]] = {}
        self._stages = stages
        self._report = report
        self._lock = threading.Lock()

    def open(self, request_id: str) -> None:
        """A message of a traced request came; to be called while `Routes.arriving` keeps the request."""
        self.requests.setdefault(request_id, {})

    def arrived(self, request_id: str, source: str, target: str, stream: bool) -> None:
        """A payload is about to be given to a stage of the process."""
        with self._lock:
            traces = self.requests.get(request_id)
            stage = self._stages.get(target)
            if traces is None or stage is None or stage.is_over(request_id):
                return
            trace = traces.get(target)
            if trace is None:
                trace = traces[target] = stage.scheduler.traces[request_id] = WorkTrace(target)
        trace.arrived(source, stream)

    def sent(self, request_id: str, source: str, target: str, stream: bool) -> None:
        """A stage is about to send a payload."""
        if (trace := self.requests.get(request_id, {}).get(source)) is not None:
            trace.sent(target, stream)

    def finished(self, request_id: str, stage: str) -> None:
        """A stage has its result; that of a terminal one is now sent to the orchestrator."""
        if (trace := self.requests.get(request_id, {}).get(stage)) is not None:
            if self._stages[stage].spec.terminal:
                trace.sent(ORCHESTRATOR, stream=False)
            trace.done(result=True)

    def closed(self, request_id: str) -> None:
        """A stage is done with the request: one of those for which it is over."""
        with self._lock:
            traces = dict(self.requests.get(request_id, {}))
        for stage, trace in traces.items():
            if self._stages[stage].is_over(request_id):
                trace.done()

    def close(self, request_id: str) -> None:
        """The process is done with the request, for now."""
        with self._lock:
            traces = self.requests.pop(request_id, None)
            for stage in traces or ():
                self._stages[stage].scheduler.traces.pop(request_id, None)
        if traces:
            for trace in traces.values():
                trace.done()
            self._report(request_id, tuple(trace.record() for trace in traces.values()))
