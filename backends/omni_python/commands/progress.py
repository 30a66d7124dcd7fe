"""Long work: on a terminal a bar or a spinner on stderr, which goes when the work is done; elsewhere one line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PERIOD_S = 0.25


@contextmanager
def working(what: str) -> Iterator[None]:
    """Tell that this takes a while, for as long as the block runs."""
    with _progress(what, "", None, None):
        yield


@contextmanager
def counting(what: str, things: str, total: int, done: Callable[[], int]) -> Iterator[None]:
    """The same with a bar; `done`, called from another thread, tells how many of the `total` things are done."""
    with _progress(what, things, total, done):
        yield


@contextmanager
def _progress(what: str, things: str, total: int | None, done: Callable[[], int] | None) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        print(f"{what} ...", file=sys.stderr, flush=True)
        yield
        return
    amount = () if total is None else (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn(things))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *amount, TimeElapsedColumn())
    ended = threading.Event()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)

        def watch() -> None:
            while done is not None and not ended.wait(_PERIOD_S):
                progress.update(task, completed=done())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
