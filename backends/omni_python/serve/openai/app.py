"""The HTTP application: OpenAI's paths over the pipelines of one Triton server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from omni_python import __version__
from omni_python.client import AsyncOmniClient, OmniClientError, PipelineInfo
from omni_python.serve.openai.bodies import document, documented, json_body
from omni_python.serve.openai.chat import ChatCompletion
from omni_python.serve.openai.conversation import SpokenAnswers
from omni_python.serve.openai.encoding import FORMATS, content_type
from omni_python.serve.openai.errors import ApiError, api_error
from omni_python.serve.openai.leaving import while_there
from omni_python.serve.openai.page import router as playground
from omni_python.serve.openai.realtime.route import realtime_endpoint
from omni_python.serve.openai.schema import ChatRequest, Completion, ErrorReply, SpeechRequest
from omni_python.serve.openai.speech import spoken


def create_app(grpc_url: str, metrics_url: str | None = None) -> FastAPI:
    """`grpc_url` is host:port of Triton's gRPC service; `metrics_url` that of its metrics, passed on at /metrics."""
    answers = SpokenAnswers()
    connections: list[AsyncOmniClient] = []

    def client(pipeline: str) -> AsyncOmniClient:
        if not connections:  # made in the event loop that uses it
            connections.append(AsyncOmniClient(grpc_url))
        return connections[0].of(pipeline)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for connection in connections:
            await connection.close()

    app = FastAPI(
        title="omni_python",
        summary="OpenAI-compatible API of multi-stage omni models",
        version=__version__,
        lifespan=lifespan,
        responses={kind: {"model": ErrorReply, "description": "What is wrong"} for kind in ("4XX", "5XX")},
    )
    document(app, [ChatRequest, SpeechRequest])
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(OmniClientError, _on_client_error)
    app.add_exception_handler(HTTPException, _on_http_error)

    @app.post(
        "/v1/chat/completions",
        openapi_extra=documented(ChatRequest),
        responses={200: {"model": Completion, "content": {"text/event-stream": {}}}},
    )
    async def chat_completions(request: Request, body: Annotated[ChatRequest, json_body(ChatRequest)]) -> Response:
        completion = ChatCompletion(body, client(body.model), answers, _traceparent(request))
        if not body.stream:
            return JSONResponse(await while_there(request, completion.whole()))
        chunks = _server_sent(completion.chunks())
        return StreamingResponse(await while_there(request, _begun(chunks)), media_type="text/event-stream")

    @app.post(
        "/v1/audio/speech",
        openapi_extra=documented(SpeechRequest),
        response_class=StreamingResponse,
        responses={200: {"content": {form.content_type: {} for form in FORMATS.values()}}},
    )
    async def audio_speech(request: Request, body: Annotated[SpeechRequest, json_body(SpeechRequest)]) -> Response:
        pieces = spoken(body, client(body.model), _traceparent(request))
        sample_rate, data = await while_there(request, _first(pieces))
        return StreamingResponse(
            _after(data, _data(pieces)), media_type=content_type(body.response_format, sample_rate)
        )

    app.add_api_websocket_route("/v1/realtime", realtime_endpoint(client))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        names = await client("").pipelines()
        return {"object": "list", "data": [_model(name) for name in names]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        names = await client("").pipelines()
        if name not in names:
            valid = ", ".join(names) or "none"
            raise ApiError(404, f"The model {name!r} does not exist; there are: {valid}.", "model_not_found", "model")
        return _model(name)

    @app.get("/v1/audio/voices")
    async def voices(model: str | None = None) -> dict[str, Any]:
        """The voices of all pipelines, or of one."""
        names = [model] if model is not None else await client("").pipelines()
        infos = [(name, await client(name).info()) for name in names]
        return {"voices": [_voice(name, voice, info) for name, info in infos for voice in info.voices]}

    @app.head("/health", include_in_schema=False)  # which some load balancers ask
    @app.get("/health")
    async def health() -> Response:
        """200 where a pipeline is ready, else 503."""
        try:
            names = await client("").pipelines()
        except OmniClientError as error:
            return JSONResponse({"status": "unavailable", "reason": str(error)}, 503)
        return JSONResponse({"status": "ready" if names else "no pipeline", "pipelines": names}, 200 if names else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        if metrics_url is None:
            raise ApiError(404, "This server was not told where Triton's metrics are.", "no_metrics")
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
                reply = await http.get(f"http://{metrics_url}/metrics")
        except httpx.HTTPError as error:
            raise ApiError(503, f"Triton's metrics do not answer at {metrics_url}: {error}", "no_metrics") from None
        return Response(reply.content, reply.status_code, media_type=reply.headers.get("content-type"))

    app.include_router(playground)
    return app


def _traceparent(request: Request) -> str | None:
    """The caller's W3C Trace Context, under which the pipeline's spans are to stand."""
    return request.headers.get("traceparent")


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "omni_python"}


def _voice(model: str, name: str, info: PipelineInfo) -> dict[str, Any]:
    return {"id": name, "name": name.capitalize(), "model": model, "default": name == info.default_voice}


async def _server_sent(chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    """Chunks as server-sent events. What fails after the first chunk can only be told as one more event."""
    begun = False
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield _event(chunk)
                begun = True
    except OmniClientError as error:
        if not begun:
            raise
        yield _event(api_error(error).body)
        return
    yield b"data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _data(pieces: AsyncGenerator[tuple[int, bytes], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        async for _, data in pieces:
            yield data


async def _first(pieces: AsyncGenerator[tuple[int, bytes], None]) -> tuple[int, bytes]:
    return await anext(pieces)


async def _begun(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Waits for the first piece, so that a request that is refused gets its status and not a broken stream."""
    return _after(await anext(pieces), pieces)


async def _after(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status)


async def _on_client_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OmniClientError)
    return await _on_api_error(request, api_error(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Of paths and methods that are not there."""
    assert isinstance(error, HTTPException)
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == 404:
        message = f"There is no path {request.url.path!r:.200}; /openapi.json lists those that there are."
        return await _on_api_error(request, ApiError(404, message, "not_found"))
    message = str(error.detail)
    if error.status_code == 405:
        message = f"The method {request.method!r:.50} is not allowed here; allowed: {headers.get('allow', 'GET')}."
    response = await _on_api_error(request, ApiError(error.status_code, message, "http_error"))
    response.headers.update(headers)
    return response
