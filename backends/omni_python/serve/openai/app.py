"""The HTTP application: OpenAI's paths over the pipelines of one Triton server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from omni_python.client import AsyncOmniClient, OmniClientError, PipelineInfo
from omni_python.serve.openai.chat import ChatCompletion
from omni_python.serve.openai.conversation import SpokenAnswers
from omni_python.serve.openai.encoding import content_type
from omni_python.serve.openai.errors import ApiError, api_error, validation_error
from omni_python.serve.openai.page import router as playground
from omni_python.serve.openai.schema import ChatRequest, SpeechRequest
from omni_python.serve.openai.speech import spoken


def create_app(grpc_url: str, metrics_url: str | None = None) -> FastAPI:
    """`grpc_url` is host:port of Triton's gRPC service; `metrics_url` that of its metrics, passed on at /metrics."""
    answers = SpokenAnswers()
    clients: dict[str, AsyncOmniClient] = {}

    def client(pipeline: str) -> AsyncOmniClient:
        return clients.setdefault(pipeline, AsyncOmniClient(grpc_url, pipeline))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for open_client in clients.values():
            await open_client.close()

    app = FastAPI(title="omni_python", summary="OpenAI-compatible API of multi-stage omni models", lifespan=lifespan)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(OmniClientError, _on_client_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest) -> Response:
        completion = ChatCompletion(body, client(body.model), answers)
        if not body.stream:
            return JSONResponse(await completion.whole())
        chunks = _server_sent(completion.chunks())
        return StreamingResponse(await _begun(chunks), media_type="text/event-stream")

    @app.post("/v1/audio/speech")
    async def audio_speech(body: SpeechRequest) -> Response:
        pieces = spoken(body, client(body.model))
        first = await anext(pieces, None)
        if first is None:
            raise ApiError(500, "The pipeline gave no speech.", "no_speech")
        sample_rate, data = first
        rest = (data async for _, data in pieces)
        return StreamingResponse(_after(data, rest), media_type=content_type(body.response_format, sample_rate))

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

    @app.get("/health")
    async def health() -> Response:
        """200 where a pipeline is ready, else 503."""
        try:
            names = await client("").pipelines()
        except OmniClientError as error:
            return JSONResponse({"status": "unavailable", "reason": str(error)}, 503)
        return JSONResponse({"status": "ready" if names else "no pipeline", "pipelines": names}, 200 if names else 503)

    @app.get("/metrics")
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


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "omni_python"}


def _voice(model: str, name: str, info: PipelineInfo) -> dict[str, Any]:
    return {"id": name, "name": name.capitalize(), "model": model, "default": name == info.default_voice}


async def _server_sent(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """Chunks as server-sent events. What fails after the first chunk can only be told as one more event."""
    begun = False
    try:
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


async def _begun(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Waits for the first piece, so that a request that is refused gets its status and not a broken stream."""
    return _after(await anext(pieces), pieces)


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async with aclosing(rest):  # type: ignore[type-var]
        async for piece in rest:
            yield piece


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status)


async def _on_client_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OmniClientError)
    return await _on_api_error(request, api_error(error))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _on_api_error(request, validation_error(list(error.errors())))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await _on_api_error(request, ApiError(error.status_code, str(error.detail), "http_error"))
