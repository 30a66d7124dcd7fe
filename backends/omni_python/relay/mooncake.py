"""Mooncake's transfer engine: one-sided reads over TCP. Sessions are made between peers, without a metadata server.

Credits travel as messages of the control plane: a notification of the engine costs several times as much.
"""

from __future__ import annotations

import logging
import os

from omni_python.proto.refs import MooncakeRef
from omni_python.relay.base import CreditFn, RelaySettings, RelayUnavailable, TransferFailed
from omni_python.relay.reads import ReadRelay, Region
from omni_python.relay.slots import Slot

HOST = "127.0.0.1"
"""Where peers find each other. The engine's ports ask nobody who they are, and it listens with both on all interfaces
whatever `MC_TCP_BIND_ADDRESS`, or any other of its variables, says (seen with 0.3.13), hence the warning; between hosts
it is refused."""

log = logging.getLogger(__name__)


class MooncakeRelay(ReadRelay[MooncakeRef]):
    name = "mooncake"

    def __init__(self, settings: RelaySettings, epoch: int, credit: CreditFn) -> None:
        os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
        os.environ.setdefault("MC_TCP_BIND_ADDRESS", HOST)
        try:
            from mooncake.engine import TransferEngine
        except ModuleNotFoundError:
            raise RelayUnavailable(
                "relay_backend mooncake needs its transfer engine: pip install --no-deps "
                "mooncake-transfer-engine-non-cuda (without a GPU), or mooncake-transfer-engine-cuda13"
            ) from None
        except ImportError as error:
            raise RelayUnavailable(
                f"relay_backend mooncake cannot be loaded: {error}; libibverbs is the Debian package libibverbs1"
            ) from error
        super().__init__(settings, epoch, credit)
        self._engine = TransferEngine()
        if self._engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "") != 0:
            raise RelayUnavailable("relay_backend mooncake: its transfer engine did not start")
        log.warning("Mooncake's engine listens on all interfaces and asks nobody who they are: close this host's ports")
        self._register(self._region)
        self._session = f"{HOST}:{self._engine.get_rpc_port()}"
        self._sessions: dict[int, str] = {}

    def announcement(self) -> bytes:
        return self._session.encode()

    def introduce(self, epoch: int, announcement: bytes) -> None:
        self._sessions[epoch] = announcement.decode("ascii", "replace")

    def forget(self, epoch: int) -> None:
        super().forget(epoch)
        self._sessions.pop(epoch, None)

    def close(self) -> None:
        self.slots.close()
        self._landing.close()
        self._deregister(self._region)

    def _register(self, region: Region) -> None:
        if self._engine.register_memory(region.address, len(region.memory)) != 0:
            raise TransferFailed(f"Mooncake did not register {len(region.memory)} bytes")

    def _deregister(self, region: Region) -> None:
        self._engine.unregister_memory(region.address)

    def _ref(self, slot: Slot, nbytes: int, address: int) -> MooncakeRef:
        return MooncakeRef(slot.generation, nbytes, address)

    def _read(self, sender: int, ref: MooncakeRef, address: int) -> None:
        session = self._sessions.get(sender)
        if session is None:
            raise TransferFailed("the sender has not been introduced, or is gone")
        if ref.nbytes and self._engine.transfer_sync_read(session, address, ref.address, ref.nbytes) != 0:
            raise TransferFailed(f"{ref.nbytes} bytes could not be read over Mooncake: is the sender still alive?")
        self._credit(sender, self.name, ref.generation)
