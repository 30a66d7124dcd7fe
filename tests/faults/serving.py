"""`omni serve` as a process of its own, and what it and its children hold."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from omni_python.control.stub_command import StubCommand


def lasting_ports(count: int) -> list[int]:
    """Free ports that stay free while their server is away: none of those that the kernel gives to connections."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(min(10_000, first - 1000), first)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)


@dataclass
class Serving:
    """A context manager: starts `omni serve` and waits until it says that it is ready; stops it at the end."""

    repository: Path
    log: Path
    arguments: Sequence[str] = ()
    ports: list[int] = field(default_factory=lambda: lasting_ports(3))
    start_timeout: float = 100.0
    file_limit: int | None = None
    """Of file descriptors, of each process."""
    _servers: set[int] = field(default_factory=set)  # all that were seen; each leads a group, which its stubs share

    def __enter__(self) -> Serving:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def metrics_port(self) -> int:
        return self.ports[2]

    def start(self) -> None:
        names = ("--http-port", "--grpc-port", "--metrics-port")
        ports = [text for name, port in zip(names, self.ports, strict=True) for text in (name, str(port))]
        command = [sys.executable, "-m", "omni_python.cli", "serve", "--model-repository", str(self.repository)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *ports, *self.arguments], stdout=log, stderr=log, preexec_fn=self._limit_files
            )
        self.wait_said("omni serve: ready", self.start_timeout)

    def _limit_files(self) -> None:
        if self.file_limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.file_limit, self.file_limit))

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_said(self, text: str, timeout: float, count: int = 1) -> None:
        end = time.monotonic() + timeout
        while self.said().count(text) < count:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.said()[-3000:]}"
            assert time.monotonic() < end, f"never said {text!r}:\n{self.said()[-3000:]}"
            time.sleep(0.1)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 60.0) -> int:
        """The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        finally:
            if self.process.poll() is None:
                for process in (*self.family(), psutil.Process(self.process.pid)):
                    process.kill()
                self.process.wait(10)

    def family(self) -> list[psutil.Process]:
        """Every living process below `omni serve`."""
        living = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.status() != psutil.STATUS_ZOMBIE:
                    if "tritonserver" in child.name():
                        self._servers.add(child.pid)
                    living.append(child)
        return living

    def server(self) -> psutil.Process:
        for child in self.family():
            with suppress(psutil.NoSuchProcess):
                if "tritonserver" in child.name():
                    return child
        raise AssertionError("there is no server")

    def orphans(self) -> list[int]:
        """The living processes of all servers that were seen, and of their stubs, that nobody looks after: a stub whose
        server is gone is no child of `omni serve`."""
        looked_after = {child.pid for child in self.family()}
        return [pid for pid in psutil.pids() if _group_of(pid) in self._servers and pid not in looked_after]

    def stub(self, model: str, timeout: float = 60.0) -> psutil.Process:
        """A model's process, as soon as there is one."""
        end = time.monotonic() + timeout
        while True:
            for child in self.family():
                with suppress(psutil.NoSuchProcess):
                    if name_of(child) == model:
                        return child
            assert time.monotonic() < end, f"no process of {model}:\n{self.said()[-3000:]}"
            time.sleep(0.1)

    def held(self) -> dict[str, Counter[str]]:
        """Of this server: file descriptors and threads by process; regions, sockets and their directories; and
        processes that outlived a server of its."""
        fds: Counter[str] = Counter()
        threads: Counter[str] = Counter()
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                name, opened = name_of(process), process.num_fds()
                threads[name] += process.num_threads()
                fds[name] += opened
        places = Counter(
            regions=sum(1 for path in Path("/dev/shm").glob(f"omni_{self.process.pid}_*")),
            directories=len(self.directories()),
            sockets=sum(not name.endswith(".draft") for folder in self.directories() for name in names(folder)),
            processes=len(self.family()),
        )
        orphans = Counter(map(str, self.orphans()))
        return {"fds": fds, "threads": threads, "places": places, "orphans": orphans}

    def details(self) -> list[str]:
        """What `held` counts, by name: a line for each process, for the places and for the orphans."""
        lines = [f"regions {sorted(path.name for path in Path('/dev/shm').glob(f'omni_{self.process.pid}_*'))}"]
        lines += [f"{folder.name} {sorted(names(folder))}" for folder in self.directories()]
        lines += [f"orphan {pid} {StubCommand.of(pid)}" for pid in self.orphans()]
        for process in self.family():
            with suppress(psutil.NoSuchProcess, OSError):
                here = Path(f"/proc/{process.pid}")
                opened = Counter(re.sub(r"\d+", "N", os.readlink(path)) for path in (here / "fd").iterdir())
                threads = Counter(path.read_text().strip() for path in here.glob("task/*/comm"))
                lines.append(f"{name_of(process)} ({process.pid}): {dict(opened)} {dict(threads)}")
        return lines

    def directories(self) -> list[Path]:
        """Socket directories of this server and of those that it had before."""
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        self.family()
        found = base.glob(f"omni-{os.getuid()}-*-*")
        return [path for path in found if int(path.name.split("-")[2]) in self._servers]


def name_of(process: psutil.Process) -> str:
    """The model of a stub, else the program's name."""
    stub = StubCommand.parse(process.cmdline())
    return process.name() if stub is None else stub.model


def names(folder: Path) -> list[str]:
    """Of what is in it; none where it has just gone."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _group_of(pid: int) -> int:
    """0 for a process that is gone, or a zombie."""
    try:
        running = psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        return os.getpgid(pid) if running else 0
    except (psutil.NoSuchProcess, ProcessLookupError):
        return 0
