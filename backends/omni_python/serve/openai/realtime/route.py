"""The path: who asks, and which pipeline it wants to talk with, before its connection is accepted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket

from omni_python.client import AsyncOmniClient, OmniClientError
from omni_python.serve.openai.errors import ApiError, api_error
from omni_python.serve.openai.realtime.connection import Connection

_PROTOCOL = "realtime"
"""What browsers name as the subprotocol; they leave where the server does not choose one of theirs."""


def realtime_endpoint(client: Callable[[str], AsyncOmniClient]) -> Callable[[WebSocket], Awaitable[None]]:
    """`client` gives the client of a pipeline by its name."""

    async def realtime(socket: WebSocket) -> None:
        try:
            _check_origin(socket)
            model = _model(socket)
            info = await client(model).info()
        except (ApiError, OmniClientError) as refused:
            error = refused if isinstance(refused, ApiError) else api_error(refused)
            await socket.send_denial_response(JSONResponse(error.body, error.status))
            return
        await socket.accept(_PROTOCOL if _PROTOCOL in socket.scope["subprotocols"] else None)
        await Connection(socket, client(model), info).run()

    return realtime


def _check_origin(socket: WebSocket) -> None:
    """Browsers let every page open WebSockets to any server, this machine's among them, and say in a header whose page
    it is; other clients send none. Raises `ApiError` where it is not the server's own."""
    origin, host = socket.headers.get("origin"), socket.headers.get("host", "")
    if origin is not None and (not host or _host(origin) != host.lower()):
        reason = f"Pages of {origin!r:.200} may not connect; only those of this server itself, {host!r:.200}, may"
        raise ApiError(403, f"{reason}.", "forbidden_origin")


def _host(origin: str) -> str:
    """With its port, where it is not that of the scheme. "" for "null", a sandboxed page or a local file."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _model(socket: WebSocket) -> str:
    """Raises `ApiError`."""
    query = socket.query_params
    unknown = sorted(set(query) - {"model"})
    if unknown:
        reason = f"Unsupported parameter: {unknown[0]!r} is not supported by this server"
        raise ApiError(400, f"{reason}.", "unsupported", unknown[0])
    if "model" not in query:
        raise ApiError(400, "Missing required parameter: 'model'.", "missing_required_parameter", "model")
    return query["model"]
