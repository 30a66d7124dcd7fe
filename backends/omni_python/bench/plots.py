"""Pictures of a benchmark: one PNG for its closed loops, one for its open loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from omni_python.bench.summary import Spread, Summary

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which colour-blind people can tell apart."""

OTHERS = "others"
_MARKERS = ("o", "s", "^", "D")


def save_plots(summaries: Sequence[Summary], folder: Path, title: str) -> list[Path]:
    """Write concurrency.png and rate.png, each where there are such loads; returns their paths."""
    written = []
    for closed, name in ((True, "concurrency"), (False, "rate")):
        if chosen := sorted((one for one in summaries if one.closed is closed), key=lambda one: one.level):
            path = folder / f"{name}.png"
            figure(chosen, title).savefig(path, dpi=120)
            written.append(path)
    return written


def figure(summaries: Sequence[Summary], title: str) -> Figure:
    """Latencies, gaps, throughput, real-time factor, silence and costs against the load."""
    with matplotlib.rc_context({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}):
        drawn = Figure(figsize=(13, 6.6), layout="constrained")
        axes = drawn.subplots(2, 3)
        drawn.suptitle(title)
        spoken = any(one.ttfa for one in summaries)
        _spreads(axes[0, 0], summaries, {"first text": lambda s: s.ttft, "first audio": lambda s: s.ttfa}, 1e3)
        axes[0, 0].set(title="Time to the first answer", ylabel="ms")
        _spreads(axes[0, 1], summaries, {"of speech" if spoken else "of text": lambda s: s.gap}, 1e3)
        axes[0, 1].set(title="Time between pieces", ylabel="ms")
        _throughput(axes[0, 2], summaries)
        if spoken:
            _spreads(axes[1, 0], summaries, {"real-time factor": lambda s: s.rtf}, 1.0)
            axes[1, 0].axhline(1, color="black", linewidth=0.8, linestyle=":")
            axes[1, 0].set(title="Real-time factor (as fast as it plays: 1)", ylabel="s of waiting per s of speech")
            _silence(axes[1, 1], summaries)
        else:
            _spreads(axes[1, 0], summaries, {"whole answer": lambda s: s.total}, 1e3)
            axes[1, 0].set(title="Time to the end of the answer", ylabel="ms")
            axes[1, 1].set_visible(False)
        for one in axes.flat[:-1]:
            one.set_xscale("log", base=2)
            one.set_xticks([summary.level for summary in summaries], _levels(summaries))
            one.minorticks_off()
        _costs(axes[1, 2], summaries)
        for one in axes.flat:
            one.set_xlabel("requests at once" if summaries[0].closed else "requests that come a second")
    return drawn


def _levels(summaries: Sequence[Summary]) -> list[str]:
    return [f"{one.level:g}" for one in summaries]


def _spreads(
    axes: Axes, summaries: Sequence[Summary], figures: dict[str, Callable[[Summary], Spread | None]], factor: float
) -> None:
    """Medians as lines, 95th percentiles as dashed ones."""
    for (name, of), colour, marker in zip(figures.items(), COLOURS, _MARKERS, strict=False):
        found = [(one.level, spread) for one in summaries if (spread := of(one))]
        if not found:
            continue
        at = [level for level, _ in found]
        medians = [spread.p50 * factor for _, spread in found]
        highs = [spread.p95 * factor for _, spread in found]
        axes.plot(at, medians, color=colour, marker=marker, label=f"{name}, median")
        axes.plot(at, highs, color=colour, marker=marker, linestyle="--", fillstyle="none", label=f"{name}, 95 %")
    _finish(axes)


def _throughput(axes: Axes, summaries: Sequence[Summary]) -> None:
    levels = [one.level for one in summaries]
    axes.plot(levels, [one.requests_per_s for one in summaries], color=COLOURS[0], marker="o", label="answered")
    if any(one.goodput_per_s is not None for one in summaries):
        good = [one.goodput_per_s or 0.0 for one in summaries]
        axes.plot(levels, good, color=COLOURS[1], marker="s", linestyle="--", label="within all objectives")
    if any(one.refused for one in summaries):
        refused = [one.refused / one.window for one in summaries]
        axes.plot(levels, refused, color=COLOURS[5], marker="^", linestyle=":", label="refused")
    axes.set(title="Throughput", ylabel="requests/s")
    _finish(axes)


def _silence(axes: Axes, summaries: Sequence[Summary]) -> None:
    _spreads(axes, summaries, {"silence": lambda s: s.underrun}, 1e3)
    axes.set(title="Silence while it plays, and continuity", ylabel="ms of silence per answer")
    right = axes.twinx()
    known = [(one.level, one.continuity * 100) for one in summaries if one.continuity is not None]
    right.plot(*zip(*known, strict=True), color=COLOURS[2], marker="^", linestyle=":", label="continuity")
    right.set_ylabel("continuity, % of the time of playing")
    right.set_ylim(0, 105)
    right.grid(False)
    lines = [*axes.get_lines(), *right.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], fontsize=8, loc="center left")


def _costs(axes: Axes, summaries: Sequence[Summary]) -> None:
    levels = _levels(summaries)
    bottom = [0.0] * len(summaries)
    for name, colour in zip(_largest(summaries), COLOURS, strict=False):
        height = [_cost(one, name, _largest(summaries)) for one in summaries]
        axes.bar(levels, height, 0.6, bottom, color=colour, label=name)
        bottom = [low + high for low, high in zip(bottom, height, strict=True)]
    if any(one.gpu_ms is not None for one in summaries):
        gpu = [one.gpu_ms or 0.0 for one in summaries]
        axes.plot(levels, gpu, color="black", marker="D", linestyle="--", label="GPUs")
    axes.set(title="CPU and GPU time by process", ylabel="ms per request")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)


def _largest(summaries: Sequence[Summary]) -> list[str]:
    """The processes that cost most, in the order of the tables, and one name for all others where there are more."""
    names = list(dict.fromkeys(name for one in summaries for name in one.cpu_ms))
    if len(names) < len(COLOURS):
        return names
    by_cost = sorted(names, key=lambda name: -sum(one.cpu_ms.get(name, 0.0) for one in summaries))
    kept = by_cost[: len(COLOURS) - 2]
    return [*(name for name in names if name in kept), OTHERS]


def _cost(one: Summary, name: str, shown: Sequence[str]) -> float:
    if name == OTHERS:
        return sum(cost for other, cost in one.cpu_ms.items() if other not in shown)
    return one.cpu_ms.get(name, 0.0)


def _finish(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
