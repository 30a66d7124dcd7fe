"""Brings dead stage processes back: Triton does not restart a stub, but unloading and loading its model does."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping

import triton_python_backend_utils as pb_utils

MAX_DEATHS = 5
"""Deaths of one process within `WINDOW` seconds after which it is not brought back again: a crash loop."""

WINDOW = 300.0
FIRST_DELAY = 0.1
"""Seconds before the first reload; doubled with each further death in the window."""

UNLOAD_TIMEOUT = 60.0
"""Seconds for Triton to let go of the dead model; unloading is asynchronous."""

log = logging.getLogger(__name__)


class ModelReloader:
    """Reloads the models of dead processes, one after the other, on a thread of its own.

    `give_up(process, why)` is told of those that it cannot bring back.
    """

    def __init__(self, models: Mapping[str, str], give_up: Callable[[str, str], None]) -> None:
        self._models = models
        self._give_up = give_up
        self._dead: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._deaths: dict[str, deque[float]] = defaultdict(deque)
        self._thread = threading.Thread(target=self._run, name="omni-reload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._dead.put(None)

    def recover(self, process: str) -> None:
        """A process died. Returns at once."""
        self._dead.put(process)

    def _run(self) -> None:
        while (process := self._dead.get()) is not None:
            deaths = self._deaths[process]
            now = time.monotonic()
            deaths.append(now)
            while now - deaths[0] > WINDOW:
                deaths.popleft()
            if len(deaths) > MAX_DEATHS:
                self._give_up(process, f"it died {len(deaths)} times within {WINDOW:.0f} s and is not restarted again")
                continue
            time.sleep(FIRST_DELAY * 2 ** (len(deaths) - 1))
            self._reload(process, self._models[process])

    def _reload(self, process: str, model: str) -> None:
        start = time.monotonic()
        try:
            pb_utils.unload_model(model)
            while pb_utils.is_model_ready(model) and time.monotonic() - start < UNLOAD_TIMEOUT:
                time.sleep(0.01)
            pb_utils.load_model(model)
        except Exception as error:  # whatever Triton raises
            self._give_up(
                process,
                f"it died and its model {model} could not be loaded again ({error}); "
                "tritonserver must run with --model-control-mode=explicit --load-model=*",
            )
            return
        log.warning("process %s is back after %.2f s", process, time.monotonic() - start)
