"""Sleeps that end when they should."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_TIMERSLACK = 29


def sleep_precisely() -> None:
    """Let this thread's sleeps end when they should; Linux makes them up to 50 us longer otherwise."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))  # nanoseconds; 0 would mean the default
