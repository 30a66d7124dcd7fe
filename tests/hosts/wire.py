"""Network namespaces that stand for hosts: an address each, and between them a wire that can delay, lose and cut.

The wire is this process: each host's only interface (beside its loopback) is a TUN device whose packets it carries. So
it needs neither a bridge nor tc's netem, which not every kernel has; and what it drops, it drops without a word.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_MTU = 9000
_libc = ctypes.CDLL(None, use_errno=True)


def why_impossible() -> str:
    """Why this machine cannot have such hosts; "" where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or not os.path.exists("/dev/net/tun"):
        return "network namespaces need iproute2 and /dev/net/tun"
    made = subprocess.run(["ip", "netns", "add", f"omni-try-{os.getpid()}"], capture_output=True)
    if made.returncode:
        return f"no network namespace could be made: {made.stderr.decode()}"
    _ip("netns", "del", f"omni-try-{os.getpid()}")
    return ""


class Wire:
    """`delay` seconds for each packet, a share `loss` of which are lost; those of hosts in `cut` all are."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.delay = 0.0
        self.loss = 0.0
        self.cut: set[str] = set()
        self.carried = 0
        """Bytes so far."""
        self.addresses = {host: f"10.77.0.{number}" for number, host in enumerate(hosts, 1)}
        self._namespaces = {host: f"omni-{os.getpid()}-{host}" for host in hosts}
        self._ports: dict[bytes, tuple[str, int]] = {}  # by IPv4 address: host and TUN device
        self._random = random.Random(5)
        self._end, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)

    def __enter__(self) -> Wire:
        for host, address in self.addresses.items():
            namespace = self._namespaces[host]
            _ip("netns", "add", namespace)
            with self.on(host):
                device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TUN | _IFF_NO_PI))
            self._ports[bytes(map(int, address.split(".")))] = host, device
            _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "mtu", str(_MTU), "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        os.write(self._stop, b"x")
        self._thread.join()
        for _, device in self._ports.values():
            os.close(device)
        for namespace in self._namespaces.values():
            _ip("netns", "del", namespace)
        os.close(self._end)
        os.close(self._stop)

    @contextmanager
    def on(self, host: str) -> Iterator[None]:
        """What this thread does meanwhile, it does on that host: open sockets, start processes."""
        with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{self._namespaces[host]}") as namespace:
            _enter(namespace.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def _run(self) -> None:
        devices = {device: host for host, device in self._ports.values()}
        waiting: list[tuple[float, int, int, bytes]] = []  # due, order, to which device, packet
        count = 0
        poll = select.poll()
        for readable in (self._end, *devices):
            poll.register(readable, select.POLLIN)
        while True:
            left = None if not waiting else max(0.0, waiting[0][0] - time.monotonic()) * 1000
            for ready, _ in poll.poll(left):
                if ready == self._end:
                    return
                with suppress(BlockingIOError):
                    while True:
                        packet = os.read(ready, 65536)
                        host, target = self._ports.get(packet[16:20], ("", -1))
                        if target < 0 or {host, devices[ready]} & self.cut or self._random.random() < self.loss:
                            continue
                        self.carried += len(packet)
                        heapq.heappush(waiting, (time.monotonic() + self.delay, count, target, packet))
                        count += 1
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(waiting)
                with suppress(OSError):  # full: lost
                    os.write(target, packet)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
