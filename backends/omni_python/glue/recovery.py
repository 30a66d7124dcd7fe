"""Brings dead stage processes back: Triton does not restart a stub, but unloading and loading its model does.

That would end the other replicas of a process too, and what they work on. They are instances of the same model: it is
loaded first without the dead one, then with it. Triton (24.10 seen) ends and starts in place the instances that are new
or gone in a model's configuration, and leaves the others alone, as long as nothing but the instances changed: neither
the model's folder nor another setting.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

import triton_python_backend_utils as pb_utils

from omni_python.config.topology import Topology
from omni_python.control.back_off import BackOff
from omni_python.glue.repository import load_model, unload_model

MAX_DEATHS = 5
"""Deaths of one process within `WINDOW` seconds after which it is not brought back again: a crash loop."""

WINDOW = 300.0
FIRST_DELAY = 0.1
"""Seconds before the first reload; doubled with each further death in the window."""

UNLOAD_TIMEOUT = 60.0
"""Seconds for Triton to let go of the dead model; unloading is asynchronous."""

Replica = tuple[str, int]
"""A process and the number of the replica; 0 for the only one."""

log = logging.getLogger(__name__)


class ModelReloader:
    """Reloads the models of dead processes on a thread of its own: one at a time, since loading through BLS from
    several threads is not safe in Triton, and while one waits for its turn others are reloaded.

    A model that cannot be loaded counts as one that died again. `give_up(process, replica, why)` is told of those that
    are not brought back; their models (or instances) are unloaded, so that they are not ready for Triton either.
    """

    def __init__(self, topology: Topology, give_up: Callable[[str, int, str], None]) -> None:
        self._topology = topology
        self._groups = {group.name: group for group in topology.groups}
        self._instances = {group.name: set(range(group.replicas)) for group in topology.groups}
        self._give_up = give_up
        self._dead: queue.SimpleQueue[Replica | None] = queue.SimpleQueue()
        self._due: dict[Replica, float] = {}
        self._deaths = {
            (group.name, replica): BackOff(MAX_DEATHS, WINDOW, FIRST_DELAY)
            for group in topology.groups
            for replica in range(group.replicas)
        }
        self._thread = threading.Thread(target=self._run, name="omni-reload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._dead.put(None)

    def recover(self, process: str, replica: int) -> None:
        """A process died. Returns at once."""
        self._dead.put((process, replica))

    def _run(self) -> None:
        while True:
            try:
                replica = self._dead.get(timeout=self._time_to_next())
            except queue.Empty:
                first = min(self._due, key=self._due.__getitem__)
                del self._due[first]
                self._reload(*first)
            else:
                if replica is None:
                    return
                self._died(*replica, "it died")

    def _time_to_next(self) -> float | None:
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def _died(self, process: str, replica: int, what: str) -> None:
        deaths = self._deaths[process, replica]
        delay = deaths.next_delay(time.monotonic())
        if delay is not None:
            self._due[process, replica] = time.monotonic() + delay
            return
        why = f"{what} {deaths.count} times within {WINDOW:.0f} s and is not restarted again"
        self._give_up(process, replica, why)
        try:
            self._remove(process, replica)
        except Exception as error:  # whatever Triton raises
            log.warning("%s could not be unloaded: %s", self._groups[process].triton_model, error)

    def _reload(self, process: str, replica: int) -> None:
        start = time.monotonic()
        model, name = self._groups[process].triton_model, self._groups[process].replica_name(replica)
        try:
            self._remove(process, replica)
            self._load(process, self._instances[process] | {replica})
        except Exception as error:  # whatever Triton raises
            log.error("model %s could not be loaded again: %s", model, error)
            reason = f"it died and its model {model} could not be loaded again ({error}; that needs tritonserver with "
            self._died(process, replica, reason + "--model-control-mode=explicit --load-model=*), which happened")
            return
        log.warning("process %s is back after %.2f s", name, time.monotonic() - start)

    def _remove(self, process: str, replica: int) -> None:
        """Unload a dead instance: the model, unless it has others."""
        others = self._instances[process] - {replica}
        if others:
            self._load(process, others)
            return
        start = time.monotonic()
        model = self._groups[process].triton_model
        unload_model(model)
        while pb_utils.is_model_ready(model) and time.monotonic() - start < UNLOAD_TIMEOUT:
            time.sleep(0.01)
        self._instances[process] = set()

    def _load(self, process: str, replicas: set[int]) -> None:
        group = self._groups[process]
        if group.replicas == 1:
            load_model(group.triton_model)
        else:
            from omni_python.config.compile import model_with_replicas  # brings gRPC with it, seldom needed here

            load_model(group.triton_model, config=model_with_replicas(self._topology, group, replicas))
        self._instances[process] = replicas
