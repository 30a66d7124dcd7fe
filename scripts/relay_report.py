"""What scripts/bench_relay has measured: times of round trips, printed as they come and as a table."""

from __future__ import annotations

import json
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from omni_python.relay.base import RelayUnavailable

KB, MB = 1 << 10, 1 << 20
THERE = ", there"
"""Ends the name of a way whose reader has waited for all bytes on its GPU."""

FLOWING = ", in place, flowing"
"""Ends the name of a way on which several payloads were under way at a time."""

PLAIN_COPY = "plain copy"
"""The way that others between two GPUs are compared with."""


@dataclass
class Row:
    """Times of a round trip in microseconds."""

    way: str
    nbytes: int
    best_us: float
    median_us: float
    gb_per_s: float


class Report:
    """Figures, each measured for `seconds` at most, and what failed."""

    def __init__(self, seconds: float) -> None:
        self.rows: list[Row] = []
        self.failures: dict[str, str] = {}
        self._seconds = seconds

    def measure(self, way: str, nbytes: int, once: Callable[[], float], repeat: int = 400) -> None:
        """Repeat `once`, which returns seconds, `repeat` times or until the time for a line is over."""
        times = []
        end = time.perf_counter() + self._seconds
        for number in range(repeat + 3):
            taken = once()
            if number >= 3:
                times.append(taken)
            if time.perf_counter() > end and len(times) > 4:
                break
        best, median = min(times), statistics.median(times)
        self.rows.append(Row(way, nbytes, best * 1e6, median * 1e6, nbytes / best / 1e9))
        print(
            f"{way:32s} {nbytes / KB:9.0f} KB   best {best * 1e6:9.1f} us   median {median * 1e6:9.1f} us   "
            f"{nbytes / best / 1e9:7.2f} GB/s",
            flush=True,
        )

    def attempt(self, what: str, run: Callable[[], None]) -> None:
        """Run what measures; where it fails, print and keep why."""
        try:
            run()
        except RelayUnavailable as error:
            print(f"{what}: not run: {error}", flush=True)
            self.failures[what] = f"not run: {error}"
        except Exception:
            print(f"{what} FAILED:\n{traceback.format_exc()}", flush=True)
            self.failures[what] = traceback.format_exc()

    def print_ratios(self) -> None:
        """What part of the plain copy's rate reaches the other GPU."""
        plain = {row.nbytes: row.best_us for row in self.rows if row.way == PLAIN_COPY}
        for row in self.rows:
            if row.way.endswith((THERE, FLOWING)) and row.nbytes in plain:
                part = plain[row.nbytes] / row.best_us
                print(f"{row.way:32s} {size_name(row.nbytes):>11s} {part:7.0%} of the plain copy's rate")

    def print_table(self) -> None:
        """Best times, a row a way and a column a size."""
        sizes = sorted({row.nbytes for row in self.rows})
        print(f"\n{'best, us':32s}" + "".join(f"{size_name(size):>11s}" for size in sizes))
        for way in dict.fromkeys(row.way for row in self.rows):
            best = {row.nbytes: row.best_us for row in self.rows if row.way == way}
            print(f"{way:32s}" + "".join(f"{best[size]:11.0f}" if size in best else " " * 11 for size in sizes))

    def save(self, path: Path) -> None:
        """As JSON: the rows, and why ways failed."""
        path.write_text(json.dumps({"rows": [asdict(row) for row in self.rows], "failures": self.failures}, indent=1))

    @property
    def failed(self) -> bool:
        """Whether a way that could be run failed."""
        return any(not text.startswith("not run") for text in self.failures.values())


def size_name(nbytes: int) -> str:
    return f"{nbytes // MB} MB" if nbytes >= MB else f"{nbytes // KB} KB" if nbytes >= KB else f"{nbytes} B"
