"""Numbers on Triton's /metrics. Every name stands here, and one thread a process writes them all: updates of custom
metrics from several threads crash tritonserver (seen with 24.10)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import triton_python_backend_utils as pb_utils

PERIOD = 0.25
"""Seconds between two updates."""

_FAMILIES: dict[str, tuple[bool, str]] = {  # name -> (counter or gauge, description)
    "omni_requests_total": (True, "Requests by final state"),
    "omni_requests_in_flight": (False, "Requests between admission and their final state"),
    "omni_requests_queued": (False, "Admitted requests that wait for one in flight to end"),
    "omni_replica_requests": (False, "Requests in flight that were given to a replica of a process"),
    "omni_stage_requests_total": (True, "Requests that reached a stage"),
    "omni_stage_held": (False, "What a stage holds now: requests, fan-in, scheduler rows, KV pages"),
    "omni_relay_slots_in_use": (False, "Relay slots of a process that readers hold"),
    "omni_relay_payloads_total": (True, "Payloads that a process sent to others, by the way they went"),
    "omni_relay_waits_total": (True, "Payloads that had to wait for a slot, by relay"),
}


@dataclass(frozen=True)
class Sample:
    """The value of one metric now; a counter's is its total since start."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


class MetricsWriter:
    """Reads `samples()` every `PERIOD` seconds and writes what changed."""

    def __init__(self, pipeline: str, samples: Callable[[], Iterable[Sample]]) -> None:
        self._pipeline = pipeline
        self._samples = samples
        self._families = {
            name: pb_utils.MetricFamily(
                name=name,
                description=description,
                kind=pb_utils.MetricFamily.COUNTER if counter else pb_utils.MetricFamily.GAUGE,
            )
            for name, (counter, description) in _FAMILIES.items()
        }
        self._metrics: dict[tuple[str, tuple[str, ...]], pb_utils.Metric] = {}
        self._written: dict[tuple[str, tuple[str, ...]], float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omni-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for sample in self._samples():
                self._write(sample)
            self._stop.wait(PERIOD)

    def _write(self, sample: Sample) -> None:
        key = (sample.name, tuple(sample.labels.values()))
        written = self._written.get(key)
        if written == sample.value:
            return
        metric = self._metrics.get(key)
        if metric is None:
            labels = {"pipeline": self._pipeline, **sample.labels}
            metric = self._metrics[key] = self._families[sample.name].Metric(labels=labels)
        if _FAMILIES[sample.name][0]:
            metric.increment(sample.value - (written or 0.0))
        else:
            metric.set(sample.value)
        self._written[key] = sample.value
