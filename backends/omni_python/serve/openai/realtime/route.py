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
            model = await _model(socket, client(""))
        except ApiError as error:
            await socket.send_denial_response(JSONResponse(error.body, error.status))
            return
        await socket.accept(_PROTOCOL if _PROTOCOL in socket.scope["subprotocols"] else None)
        await Connection(socket, client(model), model).run()

    return realtime


async def _model(socket: WebSocket, client: AsyncOmniClient) -> str:
    """Raises `ApiError`."""
    query = socket.query_params
    unknown = sorted(set(query) - {"model"})
    if unknown:
        reason = f"Unsupported parameter: {unknown[0]!r} is not supported by this server"
        raise ApiError(400, f"{reason}.", "unsupported", unknown[0])
    try:
        names = await client.pipelines()
    except OmniClientError as error:
        raise api_error(error) from None
    model = query.get("model")
    if model not in names:
        valid = ", ".join(names) or "none"
        raise ApiError(404, f"The model {model!r} does not exist; there are: {valid}.", "model_not_found", "model")
    return model
