"""The figures of one load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from omni_python.bench.generator import LoadResult
from omni_python.bench.load import ClosedLoop, Plan
from omni_python.bench.record import RequestRecord
from omni_python.bench.slo import Objective, is_good
from omni_python.bench.usage import GENERATOR, GpuUse, UsageSampler

_BUSY_WORKER = 0.8
_LATE_S = 0.01
_BUSY_MACHINE = 0.95
_AUDIBLE_S = 0.001


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of a figure over requests."""

    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None where there are no values; those that are None do not count."""
        found = [value for value in values if value is not None]
        if not found:
            return None
        return cls(*(float(value) for value in np.percentile(found, (50, 95, 99, 100))))


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One load's figures; times in seconds, rates a second.

    Latencies are those of the counted requests that were answered. Rates and costs are of the `window` from the first
    counted request on: of `--seconds`, or until the last counted request ended where their number is given.
    """

    load: str
    closed: bool
    level: float
    requests: int
    answered: int
    refused: int
    errors: dict[str, int]
    """By the class of the client's error, without those that were refused."""
    interrupted: bool
    window: float
    requests_per_s: float
    goodput_per_s: float | None
    """Requests that met all objectives; None where there are no objectives."""
    text_tokens_per_s: float
    audio_s_per_s: float
    """Seconds of speech a second."""
    ttft: Spread | None
    ttfa: Spread | None
    gap: Spread | None
    """Between two pieces of an answer: of its speech, or of its text where it has no speech."""
    total: Spread | None
    rtf: Spread | None
    underrun: Spread | None
    """Silence that one would hear whose player starts with the first piece of speech."""
    continuity: float | None
    """Share of the time of playing in which there was speech to play, in 0..1; None without speech."""
    unbroken: float | None
    """Share of the spoken answers that could be played without a gap, in 0..1."""
    sent_late: Spread | None
    """Open loop: from the moment when a request was due until it was sent."""
    cpu_ms: dict[str, float]
    """CPU milliseconds a request by process, where the server runs on this machine. A request that was in flight when
    the window began or ended counts for the part of its time that lies in it. Those that an interruption cancelled are
    missing, and what they had cost falls to the others."""
    gpu_ms: float | None
    """Milliseconds a request, counted as in `cpu_ms`, in which GPUs were busy, those of several added up."""
    gpus: list[GpuUse]
    generator_cores: float
    """Of CPU that the load generator used."""
    machine_busy: float
    warnings: list[str]


def summarize(
    result: LoadResult, plan: Plan, objectives: Sequence[Objective], usage: UsageSampler, processes: int
) -> Summary:
    """The figures of a load that `processes` sent while `usage` looked."""
    counted = [record for record in result.records if record.counted]
    answered = [record for record in counted if not record.error]
    refused = [record for record in counted if record.refused]
    start = result.counting_since - result.origin
    end = max((record.ended for record in counted), default=start)
    if plan.requests is None and not result.interrupted:
        end = start + plan.seconds
    window = max(end - start, 1e-9)
    served = [record for record in result.records if start <= record.ended <= end and not record.error]
    worked = _requests_within(result.records, start, end)
    moments = result.origin + start, result.origin + end
    cpu, gpus = usage.cpu_seconds(*moments), usage.gpus(*moments)
    generator = cpu.pop(GENERATOR, 0.0) / window
    played = [record for record in answered if record.speech]
    silence, speech = _sum(played, lambda r: r.underrun or 0.0), _sum(played, lambda r: r.audio_s)
    busy = usage.machine_busy(*moments)
    closed = isinstance(result.load, ClosedLoop)
    late = None if closed else Spread.of(record.sent - record.due for record in counted)
    return Summary(
        load=str(result.load),
        closed=closed,
        level=result.load.level,
        requests=len(counted),
        answered=len(answered),
        refused=len(refused),
        errors=dict(Counter(record.error for record in counted if record.error and not record.refused).most_common()),
        interrupted=result.interrupted,
        window=window,
        requests_per_s=len(served) / window,
        goodput_per_s=sum(is_good(r, objectives) for r in served) / window if objectives else None,
        text_tokens_per_s=_sum(served, lambda r: r.usage.get("output_tokens", 0)) / window,
        audio_s_per_s=_sum(served, lambda r: r.audio_s) / window,
        ttft=Spread.of(record.first_text for record in answered),
        ttfa=Spread.of(record.first_audio for record in answered),
        gap=Spread.of(gap for record in answered for gap in record.gaps),
        total=Spread.of(record.total for record in answered),
        rtf=Spread.of(record.real_time_factor for record in answered),
        underrun=Spread.of(record.underrun for record in answered),
        continuity=speech / (speech + silence) if played else None,
        unbroken=sum((record.underrun or 0.0) < _AUDIBLE_S for record in played) / len(played) if played else None,
        sent_late=late,
        cpu_ms={name: seconds / worked * 1e3 for name, seconds in cpu.items()} if worked else {},
        gpu_ms=sum(gpu.busy for gpu in gpus) * window / worked * 1e3 if gpus and worked else None,
        gpus=gpus,
        generator_cores=generator,
        machine_busy=busy,
        warnings=_warnings(generator / processes, Spread.of(result.lateness), late, busy),
    )


def _requests_within(records: Iterable[RequestRecord], start: float, end: float) -> float:
    """How many requests' work lies between two moments, if each costs the same at any moment of its time."""
    return _sum(
        (record for record in records if record.total > 0),
        lambda record: max(0.0, min(record.ended, end) - max(record.sent, start)) / record.total,
    )


def _warnings(worker_busy: float, ticks: Spread | None, late: Spread | None, machine_busy: float) -> list[str]:
    """Why the figures may be the load generator's own, rather than the server's."""
    found = []
    if worker_busy > _BUSY_WORKER:
        found.append(f"the load generator was CPU-bound ({worker_busy:.0%} of a core a process): use more --processes")
    elif ticks is not None and ticks.p95 > _LATE_S:
        found.append(f"the load generator saw answers late (95 % by less than {ticks.p95 * 1e3:.0f} ms)")
    if late is not None and late.p95 > _LATE_S:
        found.append(f"requests were sent late (95 % by less than {late.p95 * 1e3:.0f} ms): the rate was not reached")
    if machine_busy > _BUSY_MACHINE:
        found.append(f"this machine's CPU was {machine_busy:.0%} busy, with the load generator on it")
    return found


def _sum(records: Iterable[RequestRecord], value: Callable[[RequestRecord], float]) -> float:
    return float(sum(value(record) for record in records))
