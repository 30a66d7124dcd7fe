"""A trace of this process by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

SUFFIX = ".trace.json"


def write_profile(path: Path, wait: Callable[[], None]) -> None:
    """Write a Chrome trace of what all threads of this process, and its GPU if it has one, do until `wait` returns.
    Needs torch, which a process may not have imported yet: that takes seconds. Once at a time in a process."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, experimental_config=_all_threads()) as profiler:
        wait()
    profiler.export_chrome_trace(str(path))


def _all_threads() -> Any:
    """Schedulers have threads of their own. Making Python objects of all events, which only queries need, would hold
    the interpreter's lock for seconds."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=True, trace_only=True)
    except TypeError:  # of an older torch
        return _ExperimentalConfig(profile_all_threads=True)
