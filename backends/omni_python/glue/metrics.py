"""Writes numbers to Triton's /metrics. One thread a process writes them all: updates of custom metrics from several
threads crash tritonserver (seen with 24.10)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable

import triton_python_backend_utils as pb_utils

from omni_python.control.proc_stat import is_running
from omni_python.glue.metric_names import FAMILIES, Kind, Sample
from omni_python.glue.predecessors import predecessors
from omni_python.proto.histogram import Histogram

SWITCH = "OMNI_METRICS"
"""The environment variable that is 0 for a server without metrics."""

PERIOD = 0.25
"""Seconds between two updates of what is held now. Each write is a call to Triton (about 20 us): some come later."""

CHANGE_PERIODS = 4
"""Updates between two at which gauges are written that only change; that they fill or fall to 0 is written at once."""

TOTALS_PERIODS = 8
"""Updates between two of the totals, which are many (each bucket of a histogram is a series), and of what changes with
every request."""

log = logging.getLogger(__name__)


class MetricsWriter:
    """Reads `held()` every `PERIOD` seconds, `totals()` more rarely, and writes what changed.

    Histograms are written as the counters that Prometheus reads in one: `_bucket` with the label `le`, `_sum` and
    `_count`; `histogram_quantile` asks for no more. Triton has a kind of its own for them (`MetricFamily.HISTOGRAM`),
    but that takes one call an observation, where this takes one a bucket and update, however much was observed.
    """

    def __init__(
        self, pipeline: str, held: Callable[[], Iterable[Sample]], totals: Callable[[], Iterable[Sample]]
    ) -> None:
        self._pipeline = pipeline
        self._held = held
        self._totals = totals
        self._families: dict[str, tuple[pb_utils.MetricFamily, bool]] = {}  # and whether they count
        self._series: dict[tuple[str, tuple[str, ...]], _Series] = {}
        self._filled: set[_Series] = set()  # gauges of what is held that the last update wrote
        self._predecessors: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omni-metrics", daemon=True)

    def start(self) -> None:
        """Nothing is written where the environment says so (`SWITCH`): what Triton was told, `--allow-metrics=false`,
        models cannot know, and it takes their metrics then as well.

        Where a model is reloaded in place its old process's metrics have the same names and labels, and Triton (24.10)
        crashes when that lets go of them while the new one writes. So this one waits until that has ended.
        """
        if os.environ.get(SWITCH) == "0":
            return
        self._predecessors = predecessors()
        if not self._predecessors:
            self._make_families()
        self._thread.start()

    def stop(self) -> None:
        """Write nothing more, and let go of Triton's objects: their destructors crash the interpreter's end, to which
        libraries may keep this alive."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for held in (self._filled, self._series, self._families):
            held.clear()

    def _make_families(self) -> None:
        for family in FAMILIES:
            counts = family.kind is not Kind.GAUGE
            kind = pb_utils.MetricFamily.COUNTER if counts else pb_utils.MetricFamily.GAUGE
            for name in family.series:
                made = pb_utils.MetricFamily(name=name, description=family.help, kind=kind)
                self._families[name] = made, counts

    def _run(self) -> None:
        if self._predecessors:
            while any(map(is_running, self._predecessors)):
                if self._stop.wait(PERIOD):
                    return
            self._make_families()
        updates = 0
        while not self._stop.is_set():
            try:
                self._write_held(changes=updates % CHANGE_PERIODS == 0)
                if updates % TOTALS_PERIODS == 0:
                    self._write_totals()
            except Exception:
                log.exception("metrics could not be written")
            updates += 1
            self._stop.wait(PERIOD)

    def _write_held(self, changes: bool) -> None:
        self._filled, before = set(), self._filled
        for family, value, labels in self._held():
            assert not isinstance(value, Histogram), "histograms are totals"
            series = self._of(family.name, family.labels, labels)
            if family.at_rest is not None:
                self._filled.add(series)
                if value and series.written and not changes:
                    continue
            series.write(value)
        for series in before - self._filled:  # of a replica or a reader that is gone
            series.write(0)

    def _write_totals(self) -> None:
        for sample in self._totals():
            if isinstance(sample.value, Histogram):
                self._write_histogram(sample, sample.value)
            else:
                self._of(sample.family.name, sample.family.labels, sample.labels).write(sample.value)

    def _write_histogram(self, sample: Sample, histogram: Histogram) -> None:
        """From the widest bucket down, so that whoever reads meanwhile never finds more in a narrower one."""
        bucket, total, count = sample.family.series
        names, values = sample.family.labels, sample.labels
        cumulative = histogram.cumulative
        if not self._of(count, names, values).write(cumulative[-1]):
            return
        self._of(total, names, values).write(histogram.sum)
        bounds = (*(f"{bound:g}" for bound in histogram.bounds), "+Inf")
        for bound, number in zip(reversed(bounds), reversed(cumulative), strict=True):
            self._of(bucket, (*names, "le"), (*values, bound)).write(number)

    def _of(self, name: str, labels: tuple[str, ...], values: tuple[str, ...]) -> _Series:
        series = self._series.get((name, values))
        if series is None:
            given = dict(zip(("pipeline", *labels), (self._pipeline, *values), strict=True))
            family, counts = self._families[name]
            series = self._series[name, values] = _Series(family.Metric(labels=given), counts)
        return series


class _Series:
    """One time series, and what was last written to it."""

    def __init__(self, metric: pb_utils.Metric, is_counter: bool) -> None:
        self._metric = metric
        self._is_counter = is_counter
        self.written: float | None = None

    def write(self, value: float) -> bool:
        """A gauge's value, or a counter's total; False where it is what was written last."""
        if value == self.written:
            return False
        if not self._is_counter:
            self._metric.set(value)
        elif value:
            self._metric.increment(value - (self.written or 0.0))
        self.written = value
        return True
