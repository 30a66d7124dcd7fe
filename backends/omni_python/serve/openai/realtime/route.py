"""The path: which pipeline a client wants to talk with, before its connection is accepted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

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
            model = _model(socket)
            info = await client(model).info()
        except (ApiError, OmniClientError) as refused:
            error = refused if isinstance(refused, ApiError) else api_error(refused)
            await socket.send_denial_response(JSONResponse(error.body, error.status))
            return
        await socket.accept(_PROTOCOL if _PROTOCOL in socket.scope["subprotocols"] else None)
        await Connection(socket, client(model), info).run()

    return realtime


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
