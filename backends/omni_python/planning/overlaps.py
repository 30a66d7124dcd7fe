"""How much of a device each stage had while it computed, from when the others of the device did."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from omni_python.proto.trace import Trace


def shares_of_device(traces: Sequence[Trace], stages: Collection[str]) -> dict[str, float]:
    """For stages of one device the mean of what their steps had of it, as if those that compute at once share it
    evenly: 1 for one that was always alone. All traces' hosts must have one clock. A batch, which is in several traces,
    is one step."""
    spans: dict[str, list[tuple[float, float, float]]] = {stage: [] for stage in stages}
    for trace in traces:
        for lane in trace.lanes:
            for span in lane.spans if lane.stage in spans else ():
                if span.kind == "compute" and span.end > span.start:
                    times = trace.time + span.start, trace.time + span.end
                    spans[lane.stage].append((*times, min(1.0, span.busy / (span.end - span.start))))
    points = np.unique([time for found in spans.values() for start, end, _ in found for time in (start, end)])
    lengths = np.diff(points)
    active = {stage: np.zeros(len(lengths)) for stage in stages}
    for stage, found in spans.items():
        for start, end, part in found:
            inside = slice(*np.searchsorted(points, (start, end)))
            active[stage][inside] = np.maximum(active[stage][inside], part)
    together = 1 + sum(active.values(), np.zeros(len(lengths)))
    shares = {}
    for stage, mine in active.items():
        work = float(mine @ lengths)
        shares[stage] = float((mine / (together - mine)) @ lengths) / work if work else 1.0
    return shares
