"""The load generator's tests load a real server."""

from __future__ import annotations

from tests.servers import noop_server

__all__ = ["noop_server"]
