"""One load, sent and looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omni_python.bench.generator import LoadGenerator
from omni_python.bench.load import Load, Plan
from omni_python.bench.record import RequestRecord
from omni_python.bench.slo import Objective
from omni_python.bench.summary import Summary, summarize
from omni_python.bench.usage import UsageSampler, find_server


def measure(
    generator: LoadGenerator,
    load: Load,
    plan: Plan,
    objectives: Sequence[Objective],
    ended: Callable[[RequestRecord], object],
) -> Summary:
    """Send a load and wait for its last answer; `ended` gets every request as it ends.

    Ctrl-C ends the load; the figures are those until then. Raises `WorkerDied`."""
    with UsageSampler(find_server(generator.url), generator.pids) as usage:
        result = generator.run(load, plan, ended, usage.sample)
    return summarize(result, plan, objectives, usage, generator.sending(load))
