"""What processes and GPUs are busy with while a load runs, sampled on a thread."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np
import psutil
import pynvml

from omni_python.control.stub_command import StubCommand

PERIOD_S = 0.5
GENERATOR = "load generator"
_ENDED = "?"


class GpuUse(msgspec.Struct, frozen=True):
    """`busy` is the share of time in which the GPU computed anything, in 0..1."""

    index: int
    name: str
    busy: float
    memory_mib: float


def find_server(url: str) -> psutil.Process | None:
    """The process that listens at host:port, where that is this machine and the process may be looked at."""
    host, _, port = url.rpartition(":")
    if not _is_local(host.strip("[]")):
        return None
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listens_at = getattr(connection.laddr, "port", 0) if connection.status == psutil.CONN_LISTEN else 0
            if connection.pid and port == str(listens_at):
                return psutil.Process(connection.pid)
    return None


def _is_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(socket.gethostbyname(host))
    except (OSError, ValueError):
        return False
    own = {found.address for addresses in psutil.net_if_addrs().values() for found in addresses}
    return address.is_loopback or str(address) in own


def process_name(command: Sequence[str]) -> str:
    """What a process is called in reports: a stub by its Triton model, others by their program, which those that have
    ended do not tell."""
    if not command:
        return _ENDED
    stub = StubCommand.parse(command)
    return Path(command[0]).name if stub is None else stub.model


class UsageSampler:
    """Samples a server's process tree, the load generator's processes and all GPUs: when the block begins, every
    `period` seconds, and when it ends."""

    def __init__(self, server: psutil.Process | None, generator: Sequence[int], period: float = PERIOD_S) -> None:
        self._server = server
        self._period = period
        self._generator = [psutil.Process(pid) for pid in generator]
        self._times: list[float] = []
        self._cpu: list[dict[str, float]] = []
        self._seen: dict[tuple[int, float], tuple[str, float]] = {}
        self._machine: list[tuple[float, float]] = []
        self._gpus = _gpus()
        self._gpu_samples: list[list[tuple[float, float]]] = []
        self._sampling = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omni-bench-usage", daemon=True)

    def __enter__(self) -> UsageSampler:
        self.sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.sample()

    def sample(self) -> None:
        """Look now, too: figures from this moment on do not depend on what was before. Any thread."""
        with self._sampling:
            self._sample()

    def cpu_seconds(self, start: float, end: float) -> dict[str, float]:
        """CPU seconds used between two moments of the monotonic clock, by process; the server's own first."""
        names = sorted(set().union(*self._cpu) - {GENERATOR, "tritonserver"})
        ordered = [name for name in ("tritonserver", *names, GENERATOR) if name in self._cpu[-1]]
        used = {}
        for name in ordered:
            totals = [sample.get(name, 0.0) for sample in self._cpu]
            used[name] = float(np.diff(np.interp([start, end], self._times, totals))[0])
        return used

    def machine_busy(self, start: float, end: float) -> float:
        """The share of all CPU time of the machine, in 0..1, that was not idle."""
        busy, total = (
            np.diff(np.interp([start, end], self._times, kind))[0] for kind in zip(*self._machine, strict=True)
        )
        return float(busy / total) if total else 0.0

    def gpus(self, start: float, end: float) -> list[GpuUse]:
        """The GPUs that did anything between two moments."""
        inside = [i for i, moment in enumerate(self._times) if start <= moment <= end] or [len(self._times) - 1]
        found = []
        for number, (index, name, _) in enumerate(self._gpus):
            busy, memory = np.array([self._gpu_samples[i][number] for i in inside]).T
            if busy.any():
                found.append(GpuUse(index, name, float(busy.mean()), float(memory.max())))
        return found

    def _run(self) -> None:
        while not self._ended.wait(self._period):
            self.sample()

    def _sample(self) -> None:
        for process in self._generator:
            self._look_at(process, GENERATOR)
        if self._server is not None:
            with contextlib.suppress(psutil.Error):
                self._look_at_tree(self._server)
        self._times.append(time.monotonic())
        totals: dict[str, float] = defaultdict(float)
        for name, seconds in self._seen.values():
            totals[name] += seconds
        self._cpu.append(dict(totals))
        times = psutil.cpu_times()
        self._machine.append((sum(times) - times.idle - getattr(times, "iowait", 0.0), sum(times)))
        self._gpu_samples.append([_gpu_sample(handle) for _, _, handle in self._gpus])

    def _look_at_tree(self, server: psutil.Process) -> None:
        """A child that is no stub counts as its parent's: a tensor-parallel follower, for example."""
        names = {server.pid: "tritonserver"}
        self._look_at(server, names[server.pid])
        for process in server.children(recursive=True):  # parents come first
            with contextlib.suppress(psutil.Error):
                name = process_name(process.cmdline())
                parent = names.get(process.ppid(), "tritonserver")
                names[process.pid] = parent if parent != "tritonserver" else name
                self._look_at(process, names[process.pid])

    def _look_at(self, process: psutil.Process, name: str) -> None:
        """Those that have ended keep their name and what they used."""
        with contextlib.suppress(psutil.Error):
            times, key = process.cpu_times(), (process.pid, process.create_time())
            known = self._seen.get(key, (name,))[0]
            self._seen[key] = known if name == _ENDED else name, times.user + times.system


def _gpus() -> list[tuple[int, str, object]]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [(index, str(pynvml.nvmlDeviceGetName(handle)), handle) for index, handle in enumerate(handles)]


def _gpu_sample(handle: object) -> tuple[float, float]:
    """Busy share and used memory in MiB."""
    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return busy, pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20
    except pynvml.NVMLError:  # a MIG device tells no utilisation
        return 0.0, 0.0
