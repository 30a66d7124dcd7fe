"""The orchestrator model: the one that clients call."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from omni_python.config.topology import resolve_topology
from omni_python.control.restart_wishes import wish_restart
from omni_python.glue.context import ModelContext
from omni_python.glue.metrics import MetricsWriter
from omni_python.glue.pipeline_samples import held_by_pipeline, totals_of_pipeline
from omni_python.glue.recovery import ModelReloader
from omni_python.glue.request import ParsedRequest, parse_request
from omni_python.glue.response import TritonSink, send_description, send_error, send_nothing, send_trace, send_uptime
from omni_python.pipeline.build import limits, pipeline_info, pipeline_spec, relay_settings, trace_store
from omni_python.pipeline.coordinator import Coordinator
from omni_python.pipeline.place import process_place
from omni_python.pipeline.recording.recorder import new_order, record_directory, recording_path
from omni_python.pipeline.stats.answers import AnswerStats, MeasuredSink
from omni_python.proto.errors import Cancelled, ErrorCode, NotFound, OmniError
from omni_python.proto.info import PipelineInfo
from omni_python.proto.messages import RecordOrder

log = logging.getLogger(__name__)


class Orchestrator:
    """Reads requests, admits them, and leaves the rest to the coordinator; `execute` never waits."""

    def __init__(self, context: ModelContext) -> None:
        self._started = time.monotonic()
        spec = pipeline_spec(context.config)
        self._context = context
        self._reloader = ModelReloader(
            resolve_topology(context.config),
            lambda process, replica, why: self._coordinator.give_up(process, replica, why),
            self._wish_restart,
            context.config.limits,
        )
        self._coordinator = Coordinator(
            spec,
            context.directory,
            relay_settings(context.config),
            self._reloader.recover,
            limits(context.config),
            traces=trace_store(context.config),
            place=process_place(context.config, context.host, None),
        )
        self._record_directory = record_directory()
        self._reloader.start()
        self._coordinator.start()
        self._answers = AnswerStats()
        self._refused: Counter[ErrorCode] = Counter()
        held = functools.partial(held_by_pipeline, self._coordinator, self._refused)
        totals = functools.partial(totals_of_pipeline, self._coordinator, self._answers)
        self._metrics = MetricsWriter(spec.name, held, totals)
        self._metrics.start()

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            inputs = {tensor.name(): tensor for tensor in request.inputs()}
            if (describe := inputs.get("describe")) is not None:
                self._describe(sender, bool(describe.as_numpy().all()))
                continue
            if (trace_id := inputs.get("trace_id")) is not None:
                name = _text(trace_id)
                threading.Thread(target=self._tell_trace, args=(sender, name), name="omni-trace", daemon=True).start()
                continue
            if (key := inputs.get("cancel")) is not None:
                self._cancel(sender, _text(key))
                continue
            try:
                # Under load its deadline may have passed in Triton's own queue. To ask is slow, and else done later.
                if not self._coordinator.check_room() and sender.is_cancelled():
                    raise Cancelled("the client had left before the request was read")
                tensors = {name: tensor.as_numpy() for name, tensor in inputs.items()}
                given = request.parameters()
                parsed = parse_request(tensors, msgspec.json.decode(given) if given else None)
                record = self._record_order(parsed) if parsed.record else None
                sink = TritonSink(sender, parsed, request.requested_output_names(), self._recordings(record))
                if parsed.request.stream:
                    sink.announce()
                measured = MeasuredSink(sink, self._answers, parsed.request.stream)
                self._coordinator.submit(
                    parsed.request, measured, parsed.timeout, record, parsed.trace, parsed.cancel_key
                )
            except Exception as error:
                if not isinstance(error, OmniError):
                    log.exception("a request could not be read")
                refusal = OmniError.of(error)
                self._refused[refusal.code] += 1
                send_error(sender, refusal)

    def is_ready(self) -> bool:
        """Whether the whole pipeline can serve; see `Coordinator.is_ready`."""
        return self._coordinator.is_ready()

    def _record_order(self, parsed: ParsedRequest) -> RecordOrder:
        spec = self._coordinator.spec
        stages = [stage for stages in spec.stages.values() for stage in stages]
        unused = spec.unneeded(spec.active_terminals(parsed.request))
        return new_order(self._record_directory, parsed.record, stages, unused, json.dumps(parsed.request.sampling))

    def _recordings(self, record: RecordOrder | None) -> list[str]:
        """The files that will be written."""
        if record is None or self._record_directory is None:
            return []
        return [str(recording_path(self._record_directory, record.name, stage)) for stage in record.stages]

    def _tell_trace(self, sender: Any, name: str) -> None:
        try:
            send_trace(sender, self._coordinator.traces.find(name))
        except Exception as error:
            send_error(sender, OmniError.of(error))

    def _cancel(self, sender: Any, key: str) -> None:
        if key and self._coordinator.cancel(key):
            send_nothing(sender)
        else:
            send_error(sender, NotFound("cancel: no request that was sent with this cancel_key is running"))

    def _describe(self, sender: Any, whole: bool) -> None:
        if whole:  # reading the checkpoint for the first time takes seconds
            threading.Thread(target=self._send_info, args=(sender,), name="omni-describe", daemon=True).start()
        else:
            send_uptime(sender, time.monotonic() - self._started)

    def _send_info(self, sender: Any) -> None:
        try:
            send_description(sender, self._info)
        except Exception as error:
            log.exception("the pipeline could not be described")
            send_error(sender, OmniError.of(error))

    @functools.cached_property
    def _info(self) -> PipelineInfo:
        return pipeline_info(self._context.config, self._context.repository)

    def _wish_restart(self, process: str, why: str) -> None:
        if not self._coordinator.serves(process):
            wish_restart(self._context.directory, self._coordinator.spec.name, why)

    def finalize(self) -> None:
        self._metrics.stop()
        self._reloader.stop()
        self._coordinator.stop()


def _text(tensor: Any) -> str:
    """Of an input that stands alone."""
    return b"".join(tensor.as_numpy().flat).decode(errors="replace")
