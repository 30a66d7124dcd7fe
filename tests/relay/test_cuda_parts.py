"""How payloads for another GPU are cut into parts; sender and reader must cut alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omni_python.relay.cuda_shm import MAX_PARTS, PART, parts_of
from omni_python.relay.device import GRAIN


@given(st.integers(2 * PART, 1 << 40))
def test_parts_cover_everything_once_and_are_as_many_as_there_are_events(nbytes: int) -> None:
    count = min(nbytes // PART, MAX_PARTS)
    parts = parts_of(nbytes, count)
    assert len(parts) == count
    assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])] and parts[-1][1] == nbytes
    assert max(end - start for start, end in parts) < nbytes / count + GRAIN + 1


@given(st.integers(0, 1 << 20), st.integers(1, 16))
def test_a_peers_nonsense_is_covered_too(nbytes: int, count: int) -> None:
    covered = 0
    for start, end in parts_of(nbytes, count):
        assert start == covered < end
        covered = end
    assert covered == nbytes
