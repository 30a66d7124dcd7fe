"""How long dead things wait before they are started again."""

from __future__ import annotations

from omni_python.control.back_off import LONGEST, SETTLED, BackOff


def test_deaths_soon_after_each_other_wait_longer_each_time() -> None:
    back_off = BackOff(limit=10, window=300.0, first_delay=0.1)
    now, delays = 0.0, [0.0]
    for _ in range(5):
        delays.append(back_off.next_delay(now) or 0.0)
        now += delays[-1] + SETTLED / 2
    assert delays[1:] == [0.1, 0.2, 0.4, 0.8, 1.6]


def test_waits_do_not_grow_for_ever() -> None:
    back_off = BackOff(limit=100, window=1e6, first_delay=0.1)
    delays = [back_off.next_delay(float(now)) for now in range(100)]
    assert delays[-1] == LONGEST and max(delay or 0.0 for delay in delays) == LONGEST


def test_what_has_run_for_a_while_starts_at_once() -> None:
    back_off = BackOff(limit=10, window=300.0, first_delay=0.1)
    assert [back_off.next_delay(now) for now in (0.0, 1.0, 2.0 + SETTLED, 3.0 + SETTLED)] == [0.1, 0.2, 0.1, 0.2]


def test_too_many_deaths_within_the_window_are_given_up() -> None:
    back_off = BackOff(limit=2, window=60.0, first_delay=0.1)
    assert back_off.next_delay(0.0) and back_off.next_delay(20.0)
    assert back_off.next_delay(40.0) is None and back_off.count == 3
    assert back_off.next_delay(105.0) and back_off.count == 1
