"""Plans for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from omni_python.planning.costs import Costs
from omni_python.planning.prediction import SHAKY, Latency, Prediction

_ABSENT = "-"

_LATENCIES: tuple[tuple[str, Callable[[Prediction], Latency | None]], ...] = (
    ("first text, ms", lambda one: one.first_text),
    ("first audio, ms", lambda one: one.first_audio),
    ("whole, ms", lambda one: one.whole),
)


def print_plans(costs: Costs, plans: Sequence[Prediction], console: Console) -> None:
    """All loads side by side; of a single one also every stage. Then what to think of the figures."""
    console.print(_loads(plans))
    if len(plans) == 1:
        console.print(_stages(plans[0]))
    for text in warnings(costs, plans):
        console.print(text, style="yellow", highlight=False)


def warnings(costs: Costs, plans: Sequence[Prediction]) -> list[str]:
    """Where the figures are beyond what was measured, or where the formulas hold less."""
    found = []
    for plan in plans:
        if plan.load > SHAKY:
            found.append(
                f"{plan.rate:.3g}/s is {plan.load:.0%} of what can be computed: beyond {SHAKY:.0%} small errors of the "
                "costs make large ones of the waits"
            )
        full = [name for name, stage in plan.stages.items() if _is_full(costs, plan, name, stage.batch)]
        if full:
            found.append(
                f"{plan.rate:.3g}/s fills the batches of {', '.join(full)} (max_batch): more at once may be possible, "
                "but was not measured"
            )
    return found


def _is_full(costs: Costs, plan: Prediction, name: str, batch: float) -> bool:
    return costs.stages[name].kind == "loop" and batch > SHAKY * costs.stages[name].max_batch > SHAKY


def _loads(plans: Sequence[Prediction]) -> Table:
    """Figures down, loads across."""
    table = _table("requests/s", "")
    for plan in plans:
        table.add_column(f"{plan.rate:.3g}", justify="right", overflow="fold")
    table.add_row("GPUs", "", *(str(plan.gpus) for plan in plans), style="bold")
    for device in plans[0].devices:
        table.add_row(device, "copies", *(str(plan.devices[device].copies) for plan in plans))
        table.add_row("", "load, %", *(f"{plan.devices[device].load * 100:.0f}" for plan in plans), style="dim")
    table.add_section()
    table.add_row("saturates at", "requests/s", *(_number(plan.saturation) for plan in plans))
    table.add_row("bottleneck", "stage", *(plan.bottleneck for plan in plans))
    table.add_row("", "on", *(plan.stages[plan.bottleneck].device for plan in plans), style="dim")
    table.add_section()
    for name, of in _LATENCIES:
        latencies = [of(plan) for plan in plans]
        if any(latencies):
            table.add_row(name, "mean", *(_number(one.mean_ms if one else None) for one in latencies))
            tail = f"{plans[0].percentile:g} %"
            table.add_row("", tail, *(_number(one.tail_ms if one else None) for one in latencies), style="dim")
    return table


def _stages(plan: Prediction) -> Table:
    table = _table("stage", "device")
    for title in ("copies", "busy, %", "batch", "wait, ms", "step, ms", "slower by", "stay, ms"):
        table.add_column(title, justify="right")
    for name, stage in plan.stages.items():
        figures = (stage.batch, stage.wait_ms, stage.step_ms, stage.slower, stage.stay_ms)
        style = "bold" if name == plan.bottleneck else None
        table.add_row(
            name, stage.device, str(stage.copies), f"{stage.busy * 100:.0f}", *map(_number, figures), style=style
        )
    return table


def _table(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    for title in titles:
        table.add_column(title, no_wrap=True)
    return table


def _number(value: float | None) -> str:
    """Three significant digits, and no more than two behind the point."""
    if value is None:
        return _ABSENT
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.2f}"
