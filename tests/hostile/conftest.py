"""One real server for all tests of this folder."""

from tests.servers import noop_server

__all__ = ["noop_server"]
