"""A trace as a drawing for terminals: a lane for each stage, true to time, with the hops that lead to it below it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.style import Style
from rich.text import Text

from omni_python.proto.trace import Hop, Lane, Span, Trace

_TICKS = (1, 2, 5)
_TICK_COLUMNS = 12
"""Columns between two marks of the time axis, at least."""

_BRIEF_COLUMNS = 110
"""Below that many, the figures are those of the work and the ways alone."""

_MOSTLY = 0.5
"""The share of its time that a span must compute to be drawn as busy."""

_STYLES = {
    "busy": Style(color="green"),
    "slack": Style(color="green", dim=True),
    "queue": Style(color="yellow"),
    "wait": Style(color="bright_black"),
    "hop": Style(color="cyan"),
    "stage": Style(bold=True),
    "words": Style(color="bright_black"),
}
_CELLS = {"busy": "█", "slack": "▒", "queue": "▚", "wait": "─"}
_STRENGTH = ("wait", "slack", "queue", "busy")
"""Where one column has several, the last of these shows."""


@dataclass(frozen=True)
class _Row:
    label: str
    shows: Lane | Hop
    figures: str


def timeline(trace: Trace, columns: int) -> list[Text]:
    """The drawing's lines, at most `columns` wide (80 at least)."""
    rows = list(_rows(trace, brief=columns < _BRIEF_COLUMNS))
    labels = max(len(row.label) for row in rows)
    figures = max(len(row.figures) for row in rows)
    scale = _Scale(max(trace.seconds, 1e-6), max(20, max(80, columns) - labels - figures - 4))
    lines = [_title(trace), Text(), Text(" " * (labels + 2)).append_text(_axis(scale))]
    for row in rows:
        label = f"{row.label:<{labels}}  ", _STYLES["words" if isinstance(row.shows, Hop) else "stage"]
        lines.append(Text.assemble(label, _cells(row, scale), (f"  {row.figures}", _STYLES["words"])))
    return [*lines, Text(), *_legend(columns)]


class _Scale:
    """Seconds to columns."""

    def __init__(self, seconds: float, columns: int) -> None:
        self.seconds = seconds
        self.columns = columns

    def column(self, time: float) -> int:
        return min(max(int(time / self.seconds * self.columns), 0), self.columns - 1)


def _rows(trace: Trace, brief: bool) -> Iterator[_Row]:
    for lane in trace.lanes:
        yield _Row(lane.stage, lane, _figures(lane, brief))
        yield from _hop_rows(trace, lane.stage, brief)


def _hop_rows(trace: Trace, target: str, brief: bool) -> Iterator[_Row]:
    for hop in trace.hops:
        if hop.target == target and hop.sent is not None and hop.received is not None:
            what = f"{hop.count} chunk{'s' * (hop.count > 1)}" if hop.stream else "result"
            what += f" ({hop.taken} taken)" if hop.taken < hop.count else ""
            took = _ms(hop.received - hop.sent)
            yield _Row(f" ╰ from {hop.source}", hop, took if brief else f"{what}, {took} on its way")


def _figures(lane: Lane, brief: bool) -> str:
    busy = sum(span.busy for span in lane.spans)
    queued = sum(span.end - span.start for span in lane.spans if span.kind == "queue")
    return _ms(busy) if brief else f"{_ms(busy)} computing, {_ms(queued)} queued"


def _cells(row: _Row, scale: _Scale) -> Text:
    match row.shows:
        case Lane():
            return _lane_cells(row.shows, scale)
        case Hop():
            return _hop_cells(row.shows, scale)


def _lane_cells(lane: Lane, scale: _Scale) -> Text:
    cells = ["" for _ in range(scale.columns)]
    for span in lane.spans:
        kind = _drawn_as(span)
        for column in range(scale.column(span.start), scale.column(span.end) + 1):
            if not cells[column] or _STRENGTH.index(kind) > _STRENGTH.index(cells[column]):
                cells[column] = kind
    text = Text()
    for cell in cells:
        text.append(_CELLS.get(cell, " "), _STYLES.get(cell))
    return text


def _drawn_as(span: Span) -> str:
    if span.kind != "compute":
        return span.kind
    return "busy" if span.busy >= _MOSTLY * (span.end - span.start) else "slack"


def _hop_cells(hop: Hop, scale: _Scale) -> Text:
    start = scale.column(hop.sent or 0.0)
    ends = (hop.last_received, hop.last_sent if hop.stream else None, hop.received)
    end = scale.column(next((time for time in ends if time is not None), 0.0))
    line = ("╌" if hop.stream else "─") * (end - start)
    return Text(" " * start + line + "▶", _STYLES["hop"]).append(" " * (scale.columns - end - 1))


def _axis(scale: _Scale) -> Text:
    step = _tick(scale)
    line = [" "] * scale.columns
    time = 0.0
    while time < scale.seconds:
        label = f"╷{time * 1e3:g} ms"
        at = scale.column(time)
        if at + len(label) <= scale.columns:
            line[at : at + len(label)] = label
        time = round(time + step, 9)
    return Text("".join(line), _STYLES["words"])


def _tick(scale: _Scale) -> float:
    """Seconds between marks: 1, 2 or 5 times a power of ten."""
    least = scale.seconds * _TICK_COLUMNS / scale.columns
    power = 1e-6
    while True:
        for digit in _TICKS:
            if digit * power >= least:
                return digit * power
        power *= 10


def _title(trace: Trace) -> Text:
    text = Text(f"{trace.pipeline}  {trace.id}  ", _STYLES["stage"])
    text.append(f"{trace.state} in {_ms(trace.seconds)}  trace {trace.trace_id}", _STYLES["words"])
    if trace.error:
        text.append(f"  {trace.error}", Style(color="red"))
    if not trace.complete:
        text.append("  (a stage has not told of its part)", Style(color="red"))
    return text


def _legend(columns: int) -> list[Text]:
    """What the signs mean, in lines of at most `columns`."""
    signs = [
        (_CELLS["busy"] * 2, "busy", "computing"),
        (_CELLS["slack"] * 2, "slack", "computing now and then"),
        (_CELLS["queue"] * 2, "queue", "queued"),
        (_CELLS["wait"] * 2, "wait", "waiting for input"),
        ("─▶", "hop", "on the way"),
        ("╌▶", "hop", "a stream, from its first chunk to its last"),
    ]
    lines = [Text()]
    for sign, style, what in signs:
        if lines[-1] and len(lines[-1]) + len(f"   {sign} {what}") > columns:
            lines.append(Text())
        lines[-1].append("   " if lines[-1] else "").append(f"{sign} ", _STYLES[style]).append(what, _STYLES["words"])
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.{1 if seconds >= 1e-3 else 2}f} ms"
