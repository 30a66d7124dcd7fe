"""Rounds in which a process of a server was killed or stopped, and tables of them.

    python3 -m tests.faults.rounds REPORT...

prints one table of the rounds that several runs of `test_killed_under_load` have written to their reports.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

ORCHESTRATOR = "qwen3_omni"
SERVER = "server"


class Round(msgspec.Struct):
    """What was done to `victim`, a model or `SERVER`, and what became of the 16 requests that ran meanwhile."""

    victim: str
    signal: str
    seed: int
    back_s: float = 0.0
    """From the signal until text and speech were answered again."""
    ends: dict[str, int] = {}
    longest_s: float = 0.0
    other_deaths: int = 0
    """Of the server, that nobody caused."""
    errors: dict[str, int] = {}

    @property
    def kind(self) -> str:
        return self.victim if self.victim == SERVER else "orchestrator" if self.victim == ORCHESTRATOR else "stage"

    def __str__(self) -> str:
        ends = " ".join(f"{name} {count}" for name, count in sorted(self.ends.items()))
        others = f", the server died by itself {self.other_deaths} times" if self.other_deaths else ""
        times = f"back after {self.back_s:5.2f} s, longest {self.longest_s:5.2f} s"
        return f"{self.signal:8} {self.victim:19} {times}: {ends}{others}"


def read(reports: Sequence[Path]) -> list[Round]:
    return [msgspec.json.decode(line, type=Round) for report in reports for line in report.read_bytes().splitlines()]


def table(rounds: Sequence[Round]) -> str:
    """How requests ended, and how soon there was service again, by what was done to which process."""
    ends = sum((Counter(done.ends) for done in rounds), Counter())
    lines = [
        f"{len(rounds)} rounds, {ends.total()} requests: " + ", ".join(f"{n} {end}" for end, n in sorted(ends.items()))
    ]
    lines += [f"seeds {', '.join(str(seed) for seed in dict.fromkeys(done.seed for done in rounds))}"]
    lines += [f"longest request {max(done.longest_s for done in rounds):.1f} s"]
    lines += [f"deaths of the server that nobody caused: {sum(done.other_deaths for done in rounds)}"]
    lines += ["signal   victim               rounds  median back  longest"]
    lines += _times([(done.signal, done.kind, done.back_s) for done in rounds])
    stages = [(done.signal, done.victim, done.back_s) for done in rounds if done.kind == "stage"]
    return "\n".join([*lines, "of the stages:", *_times(stages)])


def _times(measured: Sequence[tuple[str, str, float]]) -> list[str]:
    back = defaultdict(list)
    for by, what, seconds in measured:
        back[by, what].append(seconds)
    return [
        f"{by:8} {what:19} {len(times):7} {statistics.median(times):10.2f} s {max(times):6.2f} s"
        for (by, what), times in sorted(back.items())
    ]


if __name__ == "__main__":
    print(table(read([Path(report) for report in sys.argv[1:]])))
