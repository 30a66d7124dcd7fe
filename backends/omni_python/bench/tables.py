"""The figures of a benchmark for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from omni_python.bench.summary import Spread, Summary

_ABSENT = "-"

_WAITING: tuple[tuple[str, Callable[[Summary], Spread | None], float], ...] = (
    ("first text, ms", lambda one: one.ttft, 1e3),
    ("first audio, ms", lambda one: one.ttfa, 1e3),
    ("between, ms", lambda one: one.gap, 1e3),
    ("whole, ms", lambda one: one.total, 1e3),
    ("real-time factor", lambda one: one.rtf, 1.0),
    ("silence, ms", lambda one: one.underrun, 1e3),
    ("sent late, ms", lambda one: one.sent_late, 1e3),
)
_SERVING: tuple[tuple[str, Callable[[Summary], float | None]], ...] = (
    ("continuity, %", lambda one: None if one.continuity is None else one.continuity * 100),
    ("unbroken, %", lambda one: None if one.unbroken is None else one.unbroken * 100),
    ("answered/s", lambda one: one.requests_per_s),
    ("good/s", lambda one: one.goodput_per_s),
    ("text tokens/s", lambda one: one.text_tokens_per_s or None),
    ("speech, s/s", lambda one: one.audio_s_per_s or None),
    ("requests", lambda one: one.requests),
    ("refused", lambda one: one.refused),
    ("failed", lambda one: sum(one.errors.values())),
)


def print_tables(summaries: Sequence[Summary], console: Console) -> None:
    """A table of the closed loops and one of the open ones, then what went wrong and what to think of the figures."""
    for closed in (True, False):
        if chosen := [one for one in summaries if one.closed is closed]:
            console.print(_table(chosen))
    for one in summaries:
        for what, count in one.errors.items():
            console.print(f"{one.load}: {count} x {what}", style="red", highlight=False)
        for warning in one.warnings:
            console.print(f"{one.load}: {warning}", style="yellow", highlight=False)
        if one.interrupted:
            console.print(f"{one.load}: interrupted; its figures are those until then", style="yellow")


def _table(summaries: Sequence[Summary]) -> Table:
    """Figures down, loads across; figures that no load has are left out."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("requests at once" if summaries[0].closed else "requests/s asked", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in summaries:
        table.add_column(f"{one.level:g}", justify="right")
    for name, of, factor in _WAITING:
        spreads = [of(one) for one in summaries]
        if any(spreads):
            table.add_row(name, "median", *(_number(one.p50 * factor if one else None) for one in spreads))
            table.add_row("", "95 %", *(_number(one.p95 * factor if one else None) for one in spreads), style="dim")
    table.add_section()
    for name, value_of in _SERVING:
        values = [value_of(one) for one in summaries]
        if any(value is not None for value in values):
            table.add_row(name, "", *map(_number, values))
    table.add_section()
    for name in dict.fromkeys(name for one in summaries for name in one.cpu_ms):
        table.add_row(name, "CPU ms/req", *(_number(one.cpu_ms.get(name)) for one in summaries), style="dim")
    if any(one.cpu_ms for one in summaries):
        table.add_row("whole server", "CPU ms/req", *(_number(sum(one.cpu_ms.values())) for one in summaries))
    if any(one.gpu_ms is not None for one in summaries):
        table.add_row("GPUs", "busy ms/req", *(_number(one.gpu_ms) for one in summaries))
    table.add_row("load generator", "CPU cores", *(f"{one.generator_cores:.2f}" for one in summaries))
    return table


def _number(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return _ABSENT
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
