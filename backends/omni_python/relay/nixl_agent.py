"""One NIXL agent: registered memory, peers by epoch, reads that notify their senders.

The read itself notifies the sender, with the generation that was read and the reader's epoch, so that no credit travels
as a message. One thread drains these notifications and lets UCX make progress; NIXL's own progress thread spins, which
a machine with few cores cannot spare.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from omni_python.relay.base import RelayUnavailable, TransferFailed
from omni_python.relay.slots import Slots

READ_TIMEOUT = 30.0
"""Seconds after which a read is given up; a dead sender is noticed in less than one."""

_NOTIFICATION = struct.Struct("<QQ")  # generation, reader's epoch
_MODULES = ("nixl_cu13", "nixl_cu12")

BUSY_POLL = 50e-6
CALM_POLL = 1e-3
CALM_AFTER = 5e-3
IDLE_POLL = 0.05
"""Seconds between looks for notifications: while something is out, once nothing came for a while, with nothing out."""


class _Announcement(msgspec.Struct, array_like=True):
    """A peer's metadata, as NIXL has it, and the index of its GPU in its own numbering."""

    metadata: bytes
    device: int = 0


class NixlAgent:
    """An agent for memory of one kind: "DRAM", or "VRAM" of the GPU with index `device`. Thread-safe.

    `credit` is called with what readers have read; `bind` at the start of each use of NIXL on a thread.
    """

    def __init__(
        self,
        epoch: int,
        slots: Slots,
        credit: Callable[[int, int], object],
        kind: str = "DRAM",
        device: int = 0,
        bind: Callable[[], object] = lambda: None,
    ) -> None:
        if kind == "VRAM":
            # Where UCX cannot see the NVLinks, as in some virtual machines, it reads over TCP unless told otherwise.
            os.environ.setdefault("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on")
            os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")  # which it prints to the standard output
        api = _import_api()
        self._epoch = epoch
        self._slots = slots
        self._credit = credit
        self._kind = kind
        self._device = device
        self._bind = bind
        self._lock = threading.Lock()  # the agent does not say that it is thread-safe
        bind()
        config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent = api.nixl_agent(f"{epoch:016x}{kind[0]}", config)
        self._announced: dict[int, _Announcement] = {}
        self._names: dict[int, str] = {}  # of those peers that were read from
        self._closed = False
        self._out = threading.Event()
        self._dispatcher = threading.Thread(target=self._dispatch, name="omni-nixl", daemon=True)

    def start(self) -> bytes:
        """Once the pool is registered: begin to hear, and say what peers have to know."""
        self._dispatcher.start()
        with self._lock:
            return msgspec.msgpack.encode(_Announcement(self._agent.get_agent_metadata(), self._device))

    def close(self) -> None:
        self._closed = True
        self._out.set()
        self._dispatcher.join()

    def introduce(self, epoch: int, announcement: bytes) -> None:
        try:
            decoded = msgspec.msgpack.decode(announcement, type=_Announcement)
        except msgspec.MsgspecError as error:
            raise TransferFailed(f"a peer's announcement cannot be read: {error}") from error
        with self._lock:
            self._announced[epoch] = decoded

    def knows(self, epoch: int) -> bool:
        return epoch in self._announced

    def forget(self, epoch: int) -> None:
        with self._lock:
            self._announced.pop(epoch, None)
            name = self._names.pop(epoch, None)
            if name is not None:
                self._agent.remove_remote_agent(name)

    # -- memory

    def register(self, address: int, nbytes: int) -> Any:
        """Returns what `deregister` and `metadata_of` want. Raises `TransferFailed`."""
        with self._lock:
            self._bind()
            handle = self._agent.register_memory([(address, nbytes, self._device, "")], self._kind)
        if handle is None:
            raise TransferFailed(f"NIXL did not register {nbytes} bytes")
        return handle

    def deregister(self, handle: Any) -> None:
        with self._lock:
            self._bind()
            self._agent.deregister_memory(handle)

    def metadata_of(self, handle: Any) -> bytes:
        """What a reader must know of memory that was registered after the start."""
        with self._lock:
            metadata: bytes = self._agent.get_partial_agent_metadata(handle, False)
        return metadata

    # -- transfers

    def offered(self) -> None:
        """Something is out: look for its notification often."""
        self._out.set()

    def read(self, sender: int, generation: int, nbytes: int, remote: int, local: int, region: bytes = b"") -> None:
        """Fetch from the sender's memory to registered memory here, and notify it. Returns when the bytes are there.
        One that is forgotten meanwhile may be cut off, and is waited for no longer.

        Raises `TransferFailed`.
        """
        note = _NOTIFICATION.pack(generation, self._epoch)
        end = time.monotonic() + READ_TIMEOUT
        try:
            with self._lock:
                self._bind()
                name = self._peer(sender)
                if region:
                    self._agent.add_remote_agent(region)
                if not nbytes:
                    self._agent.send_notif(name, note)
                    return
                there = self._announced[sender].device
                to = self._agent.get_xfer_descs([(local, nbytes, self._device)], self._kind)
                source = self._agent.get_xfer_descs([(remote, nbytes, there)], self._kind)
                transfer = self._agent.initialize_xfer("READ", to, source, name, note)
                state = self._agent.transfer(transfer)
            while state == "PROC" and time.monotonic() < end and self.knows(sender):
                time.sleep(20e-6)
                with self._lock:
                    state = self._agent.check_xfer_state(transfer)
            with self._lock:
                self._agent.release_xfer_handle(transfer)
        except TransferFailed:
            raise
        except Exception as error:  # NIXL raises types of its own, one for each status
            raise TransferFailed(f"{nbytes} bytes could not be read over NIXL: {error}") from error
        if state != "DONE":
            raise TransferFailed(f"{nbytes} bytes could not be read over NIXL: {state} after {READ_TIMEOUT:.0f} s")

    def _peer(self, epoch: int) -> str:
        """Loads a peer's metadata at the first use."""
        name = self._names.get(epoch)
        if name is None:
            announced = self._announced.get(epoch)
            if announced is None:
                raise TransferFailed("the sender has not been introduced, or is gone")
            loaded = self._agent.add_remote_agent(announced.metadata)
            name = self._names[epoch] = loaded.decode() if isinstance(loaded, bytes) else loaded
        return name

    def _dispatch(self) -> None:
        self._bind()
        busy_until = 0.0
        while not self._closed:
            with self._lock:
                notes = self._agent.get_new_notifs()
            for messages in notes.values():
                for message in messages:
                    if len(message) == _NOTIFICATION.size:
                        self._credit(*_NOTIFICATION.unpack(message))
            now = time.monotonic()
            if notes or self._out.is_set():
                busy_until = now + CALM_AFTER
                self._out.clear()
            if not len(self._slots):
                self._out.wait(IDLE_POLL)
            else:
                time.sleep(BUSY_POLL if now < busy_until else CALM_POLL)


def _import_api() -> Any:
    """NIXL's Python interface: the build for torch's CUDA, or any."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    torch = sys.modules.get("torch")
    cuda = ((torch.version.cuda if torch is not None else None) or "").partition(".")[0]
    modules = sorted(_MODULES, key=lambda module: module != f"nixl_cu{cuda}")
    found = [module for module in modules if importlib.util.find_spec(module) is not None]
    if not found:
        raise RelayUnavailable(
            "relay_backend nixl needs the package nixl-cu13 or nixl-cu12: "
            "pip install --no-deps nixl-cu13 (its only needs, torch and numpy, are there)"
        )
    try:
        return importlib.import_module(f"{found[0]}._api")
    except ImportError as error:
        raise RelayUnavailable(
            f"relay_backend nixl: {found[0]} is installed but cannot be imported: {error}"
        ) from error
