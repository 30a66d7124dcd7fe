"""The application on a port."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

import uvicorn
from fastapi import FastAPI

from omni_python.serve.openai.bounds import BoundedProtocol, BoundedWebSocket, most_connections

_STOP_S = 30.0


class HttpServer:
    """Runs an application in a thread of this process until `close`; use it in a `with` statement."""

    def __init__(self, app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0 takes a free one. Raises OSError where the port is taken."""
        self._socket = socket.create_server((host, port))
        self.host, self.port = self._socket.getsockname()[:2]
        config = uvicorn.Config(
            app,
            log_level="warning",
            http=BoundedProtocol,
            limit_concurrency=most_connections(),
            ws=BoundedWebSocket,
            ws_max_size=16 << 20,
            # It would take a quarter off speech in base64, and more of the event loop's time than all else with it.
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="openai-http", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, let requests in flight end for a few seconds, and stop."""
        self._server.should_exit = True
        self._thread.join(_STOP_S)
        self._socket.close()
