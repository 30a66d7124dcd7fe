"""Brings dead stage processes back: Triton does not restart a stub, but unloading and loading its model does.

That would end the other replicas of a process too, and what they work on. They are instances of the same model: it is
loaded first without the dead one, then with it. Triton (24.10 seen) ends and starts in place the instances that are new
or gone in a model's configuration, and leaves the others alone, as long as nothing but the instances changed: neither
the model's folder nor another setting.

A process that is killed at the wrong moment can leave a lock in Triton's shared memory behind, and what waits for it
never ends. So a reload that takes far too long is taken for stuck, and only another server helps then.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from omni_python.config.parts import LimitsConfig
from omni_python.config.topology import Topology
from omni_python.control.back_off import WINDOW, BackOff
from omni_python.control.safely import safely
from omni_python.glue.repository import is_loaded, load_model, unload_model

FIRST_DELAY = 0.05
"""Seconds before a reload; longer where a process dies again and again."""

UNLOAD_TIMEOUT = 60.0
"""Seconds for Triton to let go of the dead model; unloading is asynchronous."""

START_FACTOR = 5.0
"""A reload may take that many times as long as the process took to start before."""

_WHAT = "what was to be done for a dead process"

Replica = tuple[str, int]
"""A process and the number of the replica; 0 for the only one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Died:
    """`start_s`: the seconds that the replica took to start."""

    replica: Replica
    start_s: float


@dataclass(frozen=True)
class _Loaded:
    """The end of a reload; `error` is why the replica's model could not be loaded, "" where it was."""

    replica: Replica
    error: str = ""


class ModelReloader:
    """Reloads the models of dead processes, each process's on a thread of its own, so that none waits for another's.

    A process that dies more than `limits.max_deaths` times within `WINDOW` seconds is not brought back; a model that
    cannot be loaded counts as one that died again. `give_up(process, replica, why)` is told of those that are not
    brought back; their models (or instances) are unloaded, so that they are not ready for Triton either.
    `restart(process, why)` is called where no replica of a process is left and the reload of one does not end: the
    server has to be started again, unless the process is there all the same.
    """

    def __init__(
        self,
        topology: Topology,
        give_up: Callable[[str, int, str], None],
        restart: Callable[[str, str], None],
        limits: LimitsConfig,
    ) -> None:
        self._topology = topology
        self._groups = {group.name: group for group in topology.groups}
        self._instances = {group.name: set(range(group.replicas)) for group in topology.groups}
        self._loading = {group.name: threading.Lock() for group in topology.groups}
        self._give_up = give_up
        self._restart = restart
        self._reload_s = limits.reload_s
        self._news: queue.SimpleQueue[_Died | _Loaded | None] = queue.SimpleQueue()
        self._due: dict[Replica, float] = {}
        self._late: dict[Replica, float] = {}  # when the last reload of each that goes on counts as stuck
        self._reloads: Counter[Replica] = Counter()  # that go on: who is back and dies at once has a second one
        self._given_up: set[Replica] = set()
        self._start_s = {group.name: 0.0 for group in topology.groups}
        self._deaths = {
            (group.name, replica): BackOff(limits.max_deaths, WINDOW, FIRST_DELAY)
            for group in topology.groups
            for replica in range(group.replicas)
        }
        self._thread = threading.Thread(target=self._run, name="omni-recovery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._news.put(None)

    def recover(self, process: str, replica: int, start_s: float) -> None:
        """A process died that had taken `start_s` seconds to start. Returns at once."""
        self._news.put(_Died((process, replica), start_s))

    def _run(self) -> None:
        while True:
            try:
                news = self._news.get(timeout=self._time_to_next())
            except queue.Empty:
                safely(_WHAT, self._look_at_clock)
                continue
            if news is None:
                return
            safely(_WHAT, self._take, news)

    def _take(self, news: _Died | _Loaded) -> None:
        match news:
            case _Died((process, replica), start_s):
                self._start_s[process] = start_s
                self._died(process, replica, "it died")
            case _Loaded(loaded, error):
                self._reloads[loaded] -= 1
                if not self._reloads[loaded]:
                    del self._late[loaded]
                if error:
                    self._died(*loaded, error)

    def _time_to_next(self) -> float | None:
        times = [*self._due.values(), *self._late.values()]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        for replica in [replica for replica, due in self._due.items() if due <= now]:
            threading.Thread(target=self._reload, args=replica, name="omni-reload", daemon=True).start()
            del self._due[replica]  # else no thread could be started, and it is tried again
            self._late[replica] = now + self._limit(replica[0])
            self._reloads[replica] += 1
        for replica in [replica for replica, late in self._late.items() if late <= now]:
            self._late[replica] = now + self._limit(replica[0])
            self._tell_stuck(*replica)

    def _limit(self, process: str) -> float:
        """Seconds for a reload; others of the process's replicas may have their turns before."""
        return max(self._reload_s, START_FACTOR * self._start_s[process] * self._groups[process].replicas)

    def _tell_stuck(self, process: str, replica: int) -> None:
        group = self._groups[process]
        why = f"has not loaded {group.triton_model} again within {self._limit(process):.0f} s"
        log.critical("Triton %s; it seems to be stuck (process %s)", why, group.replica_name(replica))
        if all(self._is_gone((process, other)) for other in range(group.replicas)):
            try:
                self._restart(process, why)
            except OSError as error:
                log.error("no restart could be asked for: %s", error)

    def _is_gone(self, replica: Replica) -> bool:
        return replica in self._due or replica in self._late or replica in self._given_up

    def _died(self, process: str, replica: int, what: str) -> None:
        deaths = self._deaths[process, replica]
        delay = deaths.next_delay(time.monotonic())
        if delay is not None:
            self._due[process, replica] = time.monotonic() + delay
            return
        why = f"{what} {deaths.count} times within {WINDOW:.0f} s and is not restarted again"
        self._given_up.add((process, replica))
        self._give_up(process, replica, why)
        threading.Thread(target=self._unload, args=(process, replica), name="omni-unload", daemon=True).start()

    def _unload(self, process: str, replica: int) -> None:
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
            self._news.put(_Loaded((process, replica), reason))
            return
        self._news.put(_Loaded((process, replica)))
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
        while is_loaded(model):
            if time.monotonic() - start > UNLOAD_TIMEOUT:  # to load it would change nothing
                raise TimeoutError(f"it was not unloaded within {UNLOAD_TIMEOUT:.0f} s")
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
