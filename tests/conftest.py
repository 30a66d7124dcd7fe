"""What every test shares: the threads' limit, the checkout's place, servers, and a look for what a test left behind."""

from __future__ import annotations

import os
import signal

# Before torch is imported anywhere: more threads than this only make the small tensors of the tests slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from tests.servers import noop_server, tiny_checkpoint, tiny_server

__all__ = ["noop_server", "tiny_checkpoint", "tiny_server"]

# A background job inherits SIGINT ignored, and so would what tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

LeakCheck = Callable[[], AbstractContextManager[None]]

LONG = ("sglang", "openai", "e2e")
"""Folders whose files take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where processes share the files among them, long ones come first: all processes end at about the same time."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.parent.name not in LONG)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def sane_environment(repo_root: Path) -> None:
    """The tested package is this checkout's, and numpy is one that Triton's stub can carry."""
    import omni_python

    assert omni_python.__file__ is not None
    assert Path(omni_python.__file__).is_relative_to(repo_root), f"omni_python comes from {omni_python.__file__}"
    assert int(metadata.version("numpy").split(".")[0]) < 2


@pytest.fixture
def no_leaks() -> LeakCheck:
    """`with no_leaks(): ...` fails if its body leaves a child process, or a shared-memory region, behind."""
    return _no_leaks


@contextmanager
def _no_leaks() -> Iterator[None]:
    processes, regions = _children(), _regions()
    yield
    _, alive = psutil.wait_procs(_children() - processes, timeout=2)
    assert not alive, f"still running: {[process.cmdline() for process in alive]}"
    assert not (left := _regions() - regions), f"left in /dev/shm: {sorted(left)}"


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _regions() -> set[str]:
    """Names of regions that this process, or a server that it started, made: `omni_PID_...` or `omni_client_PID_...`;
    other programs, and tests in other processes, come and go meanwhile."""
    return {path.name for path in Path("/dev/shm").glob("omni_*") if str(os.getpid()) in path.name.split("_")[1:3]}
