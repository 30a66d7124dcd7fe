"""Where two processes meet to form a group of torch.distributed: a store in each, on the loopback interface alone."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import msgspec

from omni_python.relay.base import TransferFailed

HOST = "127.0.0.1"
TIMEOUT = timedelta(seconds=30)
"""For two processes to meet, and for one payload to cross."""


class Meeting(msgspec.Struct, array_like=True):
    """How a process is met: its configured rank, its store's port, and the UUID of its GPU ("" for none)."""

    rank: int
    port: int
    gpu: str = ""

    @classmethod
    def decode(cls, announcement: bytes) -> Meeting:
        try:
            return msgspec.msgpack.decode(announcement, type=cls)
        except msgspec.MsgspecError as error:
            raise TransferFailed(f"a peer's announcement cannot be read: {error}") from error

    def store(self) -> Any:
        """The peer's store. Raises `RuntimeError` where it is gone."""
        return _store(self.port, is_master=False)


class MeetingPlace:
    """This process's own store, and what peers need to find it."""

    def __init__(self, rank: int = 0, gpu: str = "") -> None:
        listener = socket.create_server((HOST, 0))  # the store by itself would listen on every interface
        port = listener.getsockname()[1]
        self.store = _store(port, is_master=True, master_listen_fd=listener.detach())
        self.announcement = msgspec.msgpack.encode(Meeting(rank, port, gpu))


def _store(port: int, **options: Any) -> Any:
    import torch.distributed

    dist: Any = torch.distributed  # whose types leave out what it exports
    return dist.TCPStore(HOST, port, wait_for_workers=False, timeout=TIMEOUT, **options)
