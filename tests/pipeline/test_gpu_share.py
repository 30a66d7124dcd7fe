"""A process that finds less memory free than its stages ask for does not start."""

from __future__ import annotations

import pytest

from omni_python.config.memory import MemoryShare
from omni_python.pipeline.gpu_share import check_free
from omni_python.proto.errors import Unavailable

GIB = 1 << 30
SHARES = (
    MemoryShare("encoder", "front", 0.1),
    MemoryShare("talker", "speech", 0.3),
    MemoryShare("vocoder", "speech", 0.1),
)


def test_what_is_free_may_lack_the_processes_own_context() -> None:
    check_free(0, "speech", SHARES, 32 * GIB, 32 * GIB - (600 << 20), 80 * GIB)


def test_too_little_free_memory_is_told_with_who_else_may_hold_it() -> None:
    with pytest.raises(Unavailable) as caught:
        check_free(0, "speech", SHARES, 32 * GIB, 20 * GIB, 80 * GIB)
    said = str(caught.value).splitlines()
    assert said[0].startswith(
        "process speech asks for 32.00 GiB of GPU 0, but only 20.00 GiB of its 80.00 GiB are free; the rest may be held"
    )
    assert "the other processes of this table, or another pipeline" in said[0]
    assert [line.split() for line in said[2:]] == [
        ["encoder", "front", "0.1", "8.00"],
        ["talker", "speech", "0.3", "24.00"],
        ["vocoder", "speech", "0.1", "8.00"],
        ["total", "0.5", "40.00"],
    ]
    with pytest.raises(Unavailable, match="no other stage of this pipeline, but maybe another pipeline"):
        check_free(0, "speech", SHARES[1:], 32 * GIB, 20 * GIB, 80 * GIB)
