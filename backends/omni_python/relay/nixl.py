"""NIXL: one-sided reads over whatever UCX finds, from RDMA and NVLink to shared memory and TCP.

A peer's metadata is loaded once per epoch. The read itself notifies the sender, with the generation that was read and
the reader's epoch, so that no credit travels as a message. One thread drains these notifications and lets UCX make
progress; NIXL's own progress thread spins, which a machine with few cores cannot spare.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import struct
import sys
import threading
import time
from typing import Any

from omni_python.proto.refs import NixlRef
from omni_python.relay.base import CreditFn, RelaySettings, RelayUnavailable, TransferFailed
from omni_python.relay.reads import ReadRelay, Region
from omni_python.relay.slots import Slot

READ_TIMEOUT = 30.0
"""Seconds after which a read is given up; a dead sender is noticed in less than one."""

_NOTIFICATION = struct.Struct("<QQ")  # generation, reader's epoch
_MODULES = ("nixl_cu13", "nixl_cu12")

BUSY_POLL = 50e-6
CALM_POLL = 1e-3
CALM_AFTER = 5e-3
IDLE_POLL = 0.05
"""Seconds between looks for notifications: while something is out, once nothing came for a while, with nothing out."""


class NixlRelay(ReadRelay[NixlRef]):
    name = "nixl"

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn) -> None:
        api = _import_api()
        super().__init__(settings, epoch, credit)
        self._lock = threading.Lock()  # the agent does not say that it is thread-safe
        config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent = api.nixl_agent(f"{epoch:016x}", config)
        self._register(self._region)
        self._announcement: bytes = self._agent.get_agent_metadata()
        self._announced: dict[int, bytes] = {}  # peers that were introduced and not read from yet
        self._names: dict[int, str] = {}
        self._closed = False
        self._out = threading.Event()
        self._dispatcher = threading.Thread(target=self._dispatch, name="omni-nixl", daemon=True)
        self._dispatcher.start()

    def announcement(self) -> bytes:
        return self._announcement

    def introduce(self, epoch: int, announcement: bytes) -> None:
        with self._lock:
            if epoch not in self._names:
                self._announced[epoch] = announcement

    def forget(self, epoch: int) -> None:
        super().forget(epoch)
        with self._lock:
            self._announced.pop(epoch, None)
            name = self._names.pop(epoch, None)
            if name is not None:
                self._agent.remove_remote_agent(name)

    def close(self) -> None:
        self.slots.close()
        self._landing.close()
        self._closed = True
        self._out.set()
        self._dispatcher.join()
        self._deregister(self._region)

    def _register(self, region: Region) -> None:
        with self._lock:
            memory = [(region.address, len(region.memory), 0, "")]
            region.handle = self._agent.register_memory(memory, "DRAM")
        if region.handle is None:
            raise TransferFailed(f"NIXL did not register {len(region.memory)} bytes")

    def _deregister(self, region: Region) -> None:
        with self._lock:
            self._agent.deregister_memory(region.handle)

    def _ref(self, slot: Slot, nbytes: int, address: int) -> NixlRef:
        self._out.set()
        region = b""
        if slot.extra is not None:
            with self._lock:
                region = self._agent.get_partial_agent_metadata(slot.extra.handle, False)
        return NixlRef(slot.generation, nbytes, address, region)

    def _read(self, sender: int, ref: NixlRef, address: int) -> None:
        note = _NOTIFICATION.pack(ref.generation, self._epoch)
        end = time.monotonic() + READ_TIMEOUT
        try:
            with self._lock:
                name = self._peer(sender)
                if ref.region:
                    self._agent.add_remote_agent(ref.region)
                if not ref.nbytes:
                    self._agent.send_notif(name, note)
                    return
                local = self._agent.get_xfer_descs([(address, ref.nbytes, 0)], "DRAM")
                remote = self._agent.get_xfer_descs([(ref.address, ref.nbytes, 0)], "DRAM")
                transfer = self._agent.initialize_xfer("READ", local, remote, name, note)
                state = self._agent.transfer(transfer)
            while state == "PROC" and time.monotonic() < end:
                time.sleep(20e-6)
                with self._lock:
                    state = self._agent.check_xfer_state(transfer)
            with self._lock:
                self._agent.release_xfer_handle(transfer)
        except TransferFailed:
            raise
        except Exception as error:  # NIXL raises types of its own, one for each status
            raise TransferFailed(f"{ref.nbytes} bytes could not be read over NIXL: {error}") from error
        if state != "DONE":
            raise TransferFailed(f"{ref.nbytes} bytes could not be read over NIXL: {state} after {READ_TIMEOUT:.0f} s")

    def _peer(self, epoch: int) -> str:
        name = self._names.get(epoch)
        if name is None:
            announcement = self._announced.pop(epoch, None)
            if announcement is None:
                raise TransferFailed("the sender has not been introduced, or is gone")
            loaded = self._agent.add_remote_agent(announcement)
            name = self._names[epoch] = loaded.decode() if isinstance(loaded, bytes) else loaded
        return name

    def _dispatch(self) -> None:
        busy_until = 0.0
        while not self._closed:
            with self._lock:
                notes = self._agent.get_new_notifs()
            for messages in notes.values():
                for message in messages:
                    if len(message) == _NOTIFICATION.size:
                        self.credit(*_NOTIFICATION.unpack(message))
            now = time.monotonic()
            if notes or self._out.is_set():
                busy_until = now + CALM_AFTER
                self._out.clear()
            if not len(self.slots):
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
