"""On which CPUs a benchmark's server and its load run: apart, neither disturbs the other's figures.

cpus.add_options(parser)            # --server-cpus and --load-cpus
cpus.pin(args.load_cpus)            # at the start of `main`
with cpus.pinned(args.server_cpus):
    server = TritonServer.start(...)
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Collection, Iterator


def add_options(parser: argparse.ArgumentParser) -> None:
    where = "CPUs of the {}, such as 0-3,8 (default: any)"
    parser.add_argument("--server-cpus", type=cpu_list, default=[], metavar="LIST", help=where.format("server"))
    parser.add_argument("--load-cpus", type=cpu_list, default=[], metavar="LIST", help=where.format("load generator"))


def cpu_list(text: str) -> list[int]:
    """The numbers of a list as taskset takes it, of CPUs that this process may use."""
    try:
        ends = [part.partition("-")[::2] for part in text.split(",")]
        found = sorted({cpu for first, last in ends for cpu in range(int(first), int(last or first) + 1)})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no list of CPUs such as 0-3,8") from None
    usable = os.sched_getaffinity(0)
    if not found or not usable.issuperset(found):
        raise argparse.ArgumentTypeError(f"{text} is not among the CPUs {','.join(map(str, sorted(usable)))}")
    return found


def pin(cpus: Collection[int]) -> None:
    """From now on this thread runs there, and what threads and processes it starts. Empty: where it runs now."""
    if cpus:
        os.sched_setaffinity(0, cpus)


@contextlib.contextmanager
def pinned(cpus: Collection[int]) -> Iterator[None]:
    """The same inside the block alone; what is started in it stays there."""
    before = os.sched_getaffinity(0)
    pin(cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
