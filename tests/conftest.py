"""What every test shares: the threads' limit, the checkout's place, servers, and a look for what a test left behind."""

from __future__ import annotations

import os
import signal
import tempfile

# Before torch is imported anywhere: more threads than this only make the small tensors of the tests slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.servers import noop_server, tiny_checkpoint, tiny_server

__all__ = ["noop_server", "tiny_checkpoint", "tiny_server"]

# A background job inherits SIGINT ignored, and so would what tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that holds up a thread for a second is no failure of the example at hand.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

LeakCheck = Callable[[], AbstractContextManager[None]]

TINY, FORKS, NOOP = "the tiny server", "the fork server of SGLang", "the no-op server"
TOGETHER = {
    "tests/e2e": TINY,
    "tests/serve/openai": TINY,
    "tests/metrics": TINY,
    "tests/recording": TINY,
    "tests/bench/test_speech.py": TINY,
    "tests/planning/test_real_run.py": TINY,
    "tests/sglang": FORKS,
    "tests/client": NOOP,
    "tests/bench": NOOP,
    "tests/faults": NOOP,
    "tests/hostile": NOOP,
}
"""Files and folders of which most need the same thing, which takes long to start."""


def group(nodeid: str) -> str:
    """What a test's file shares with others, else the file."""
    file = nodeid.partition("::")[0]
    return TOGETHER.get(file) or TOGETHER.get(file.rpartition("/")[0]) or file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files that share something run in one process, one after the other; each other file may run in any."""
    from xdist.scheduler import LoadFileScheduling

    class LoadGroups(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return LoadGroups(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The large groups come first, so that all processes end at about the same time."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        order = (TINY, FORKS, NOOP)
        items.sort(key=lambda item: order.index(name) if (name := group(item.nodeid)) in order else len(order))


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
def directory() -> Iterator[Path]:
    """For sockets, for which pytest's own paths are too long."""
    with tempfile.TemporaryDirectory(prefix="omni-test-") as path:
        yield Path(path)


@pytest.fixture
def no_leaks() -> LeakCheck:
    """`with no_leaks(): ...` fails if its body leaves a child process, or a shared-memory region, behind."""
    return _no_leaks


@contextmanager
def _no_leaks() -> Iterator[None]:
    processes, regions = _children(), _regions()
    yield
    _, alive = psutil.wait_procs(_children() - processes, timeout=10)
    assert not alive, f"still running: {[process.cmdline() for process in alive]}"
    assert not (left := _regions() - regions), f"left in /dev/shm: {sorted(left)}"


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _regions() -> set[str]:
    """Names of regions that this process, or a server that it started, made: `omni_PID_...` or `omni_client_PID_...`;
    other programs, and tests in other processes, come and go meanwhile."""
    return {path.name for path in Path("/dev/shm").glob("omni_*") if str(os.getpid()) in path.name.split("_")[1:3]}
