"""Lets a stream wait for an event of another process without hanging where that process dies first.

What a stream waits for is a number in this process's own pinned memory; a thread writes it once the event is done, or
its owner is gone. A stream that waited for the event itself would never go on: nobody is left to signal it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from omni_python.relay.device import Gpu, sleep_precisely

GATES = 256
"""Waits at a time; beyond them streams wait for the events themselves."""

POLL = 20e-6
"""Seconds between looks at the events that are waited for, at first."""

SLOWEST_POLL = 60e-6
"""Seconds between looks at what takes long."""

log = logging.getLogger(__name__)


class _Wait(NamedTuple):
    event: Any
    gone: Callable[[], bool]
    gate: int
    value: int


class Gates:
    """Thread-safe."""

    def __init__(self, gpu: Gpu) -> None:
        from cuda.bindings import driver

        self._gpu = gpu
        self._driver: Any = driver
        pinned = gpu.torch.zeros(GATES, dtype=gpu.torch.int32, pin_memory=True)
        self._values: np.ndarray = pinned.numpy()
        self._address = int(pinned.data_ptr())
        self._free: list[int] = []
        with gpu.current():
            error = self._queue_wait(gpu.stream(), 0, 0)  # which holds already
        if error:
            log.warning("streams wait for events of other processes themselves: %s", error)
        else:
            self._free += range(GATES)
        self._waits: queue.SimpleQueue[_Wait | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="omni-gates", daemon=True)
        self._thread.start()

    def wait(self, stream: int, event: Any, gone: Callable[[], bool]) -> None:
        """Make a stream of this GPU wait until `event` is done, or `gone()`. The event must not be recorded again, nor
        destroyed, before the stream has gone on."""
        runtime = self._gpu.runtime
        if int(runtime.cudaEventQuery(event)[0]) == 0:
            return
        try:
            gate = self._free.pop()
        except IndexError:
            self._gpu.call(runtime.cudaStreamWaitEvent(stream, event, 0))
            return
        wait = _Wait(event, gone, gate, int(self._values[gate]) + 1)
        if self._queue_wait(stream, gate, wait.value):
            self._gpu.call(runtime.cudaStreamWaitEvent(stream, event, 0))
            return
        self._waits.put(wait)

    def close(self) -> None:
        """Open every gate."""
        self._waits.put(None)
        self._thread.join()

    def _queue_wait(self, stream: int, gate: int, value: int) -> str:
        """CUDA's word where it cannot be done."""
        flag = int(self._driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
        (error,) = self._driver.cuStreamWaitValue32(stream, self._address + 4 * gate, value, flag)
        return "" if int(error) == 0 else str(error)

    def _run(self) -> None:
        sleep_precisely()
        closed = False
        waits: list[_Wait] = []
        pause = POLL
        while not closed:
            if waits:
                time.sleep(pause)
                pause = min(1.1 * pause, SLOWEST_POLL)
            while not waits or not self._waits.empty():
                wait = self._waits.get()
                if wait is None:
                    closed = True
                    break
                waits.append(wait)
                pause = POLL
            waits = [wait for wait in waits if not self._opened(wait, closed)]

    def _opened(self, wait: _Wait, closed: bool) -> bool:
        not_ready = int(self._gpu.runtime.cudaError_t.cudaErrorNotReady)
        if int(self._gpu.runtime.cudaEventQuery(wait.event)[0]) == not_ready and not (closed or wait.gone()):
            return False
        self._values[wait.gate] = wait.value
        self._free.append(wait.gate)
        return True
