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
from dataclasses import dataclass

from omni_python.config.topology import Topology
from omni_python.control.back_off import WINDOW, BackOff
from omni_python.glue.repository import is_loaded, load_model, unload_model

FIRST_DELAY = 0.05
"""Seconds before a reload; longer where a process dies again and again."""

UNLOAD_TIMEOUT = 60.0
"""Seconds for Triton to let go of the dead model; unloading is asynchronous."""

Replica = tuple[str, int]
"""A process and the number of the replica; 0 for the only one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Failed:
    """A replica's model could not be loaded, for this reason."""

    replica: Replica
    why: str


class ModelReloader:
    """Reloads the models of dead processes, each process's on a thread of its own, so that none waits for another's.

    A process that dies more than `max_deaths` times within `WINDOW` seconds is not brought back; a model that cannot be
    loaded counts as one that died again. `give_up(process, replica, why)` is told of those that are not brought back;
    their models (or instances) are unloaded, so that they are not ready for Triton either.
    """

    def __init__(self, topology: Topology, give_up: Callable[[str, int, str], None], max_deaths: int) -> None:
        self._topology = topology
        self._groups = {group.name: group for group in topology.groups}
        self._instances = {group.name: set(range(group.replicas)) for group in topology.groups}
        self._loading = {group.name: threading.Lock() for group in topology.groups}
        self._give_up = give_up
        self._news: queue.SimpleQueue[Replica | _Failed | None] = queue.SimpleQueue()
        self._due: dict[Replica, float] = {}
        self._deaths = {
            (group.name, replica): BackOff(max_deaths, WINDOW, FIRST_DELAY)
            for group in topology.groups
            for replica in range(group.replicas)
        }
        self._thread = threading.Thread(target=self._run, name="omni-recovery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._news.put(None)

    def recover(self, process: str, replica: int) -> None:
        """A process died. Returns at once."""
        self._news.put((process, replica))

    def _run(self) -> None:
        while True:
            try:
                news = self._news.get(timeout=self._time_to_next())
            except queue.Empty:
                first = min(self._due, key=self._due.__getitem__)
                del self._due[first]
                threading.Thread(target=self._reload, args=first, name="omni-reload", daemon=True).start()
                continue
            match news:
                case None:
                    return
                case _Failed():
                    self._died(*news.replica, news.why)
                case _:
                    self._died(*news, "it died")

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
            with self._loading[process]:
                self._remove(process, replica)
        except Exception as error:  # whatever Triton raises
            log.warning("%s could not be unloaded: %s", self._groups[process].triton_model, error)

    def _reload(self, process: str, replica: int) -> None:
        start = time.monotonic()
        model, name = self._groups[process].triton_model, self._groups[process].replica_name(replica)
        try:
            with self._loading[process]:
                self._remove(process, replica)
                self._load(process, self._instances[process] | {replica})
        except Exception as error:  # whatever Triton raises
            log.error("model %s could not be loaded again: %s", model, error)
            reason = f"it died and its model {model} could not be loaded again ({error}; that needs tritonserver with "
            reason += "--model-control-mode=explicit --load-model=*), which happened"
            self._news.put(_Failed((process, replica), reason))
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
        while is_loaded(model) and time.monotonic() - start < UNLOAD_TIMEOUT:
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
