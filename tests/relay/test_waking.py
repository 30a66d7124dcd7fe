"""Who is kept awake during large copies, and for how long."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from omni_python.relay import waking
from omni_python.relay.waking import LARGE, LONGEST, Awake


class Nudges:
    """Counts nudges, and says when there is another."""

    def __init__(self) -> None:
        self.count = 0
        self._each: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __call__(self) -> None:
        self.count += 1
        self._each.put(None)

    def wait(self) -> None:
        self._each.get(timeout=10)


@pytest.fixture
def nudges() -> Nudges:
    return Nudges()


@pytest.fixture
def awake(nudges: Nudges) -> Iterator[Awake]:
    awake = Awake(nudges)
    yield awake
    awake.close()
    assert "omni-awake" not in {thread.name for thread in threading.enumerate()}


def test_nobody_is_nudged_for_less_than_a_large_copy(awake: Awake, nudges: Nudges) -> None:
    ended: list[str] = []
    end = awake.during(LARGE - 1, lambda: ended.append("end"))
    assert "omni-awake" not in {thread.name for thread in threading.enumerate()}
    end()
    awake.close()
    assert ended == ["end"] and nudges.count == 0


def test_nudges_come_until_the_copies_are_over(awake: Awake, nudges: Nudges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "LONGEST", 60.0)
    begun = time.monotonic()
    ended: list[str] = []
    first = awake.during(LARGE, lambda: ended.append("first"))
    second = awake.during(2 * LARGE, lambda: ended.append("second"))
    for _ in range(3):
        nudges.wait()
    first()
    seen = nudges.count
    while nudges.count < seen + 3:  # the second is still under way
        nudges.wait()
    second()
    awake.close()
    assert ended == ["first", "second"]
    assert time.monotonic() < begun + 30


def test_a_copy_that_never_ends_keeps_nobody_awake_for_long(awake: Awake, nudges: Nudges) -> None:
    awake.during(LARGE, lambda: None)
    awake.close()
    assert nudges.count <= LONGEST / waking.NAP + 1


def test_it_can_be_switched_off(awake: Awake, nudges: Nudges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "KEEP_AWAKE", False)
    awake.during(LARGE, lambda: None)
    awake.close()
    assert nudges.count == 0
