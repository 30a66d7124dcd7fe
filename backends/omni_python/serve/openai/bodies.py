"""Reading requests' bodies, and telling OpenAPI of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import jiter
from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.requests import ClientDisconnect

from omni_python.proto.json_size import MAX_JSON_BYTES, MAX_JSON_VALUES, has_too_many_values
from omni_python.serve.openai.errors import ApiError, validation_error

LARGE_BODY = 64 << 10
"""Bytes of a body that is parsed on a thread of its own, while the event loop serves others."""

BODY_S, BODY_RATE = 20.0, 500
"""A body must be there after so many seconds, and one more for each so many bytes of it that have come. They are those
of Apache's mod_reqtimeout."""

T = TypeVar("T", bound=BaseModel)


def json_body(model: type[T]) -> Any:
    """A parameter's default for FastAPI: the request's body as `model`. Raises `ApiError` with what would be valid."""

    async def read(request: Request) -> T:
        _check_media_type(request.headers.get("content-type", ""))
        data = await _data(request)
        return parsed(model, data) if len(data) < LARGE_BODY else await asyncio.to_thread(parsed, model, data)

    return Depends(read)


def parsed(model: type[T], data: bytes) -> T:
    """The JSON in `data` as `model`. Raises `ApiError`, also for keys that are given twice: one would be ignored."""
    if has_too_many_values(data):
        reason = f"it has more than {MAX_JSON_VALUES} values in its lists and objects"
        raise ApiError(413, f"The body is too large: {reason}, the most that are accepted.", "too_large")
    try:
        content = jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        raise ApiError(400, f"The body is not valid JSON: {error!s:.200}.", "invalid_json") from None
    if not isinstance(content, dict):
        raise ApiError(400, f"The body must be a JSON object, not a {type(content).__name__}.", "invalid_value")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False, include_input=False)) from None


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a path that takes `model` by `json_body`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def document(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Put the schemas that `documented` refers to into the application's OpenAPI."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            modes: list[tuple[type[BaseModel], Any]] = [(model, "validation") for model in models]
            _, found = models_json_schema(modes, ref_template="#/components/schemas/{model}")
            schema.setdefault("components", {}).setdefault("schemas", {}).update(found["$defs"])
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)  # FastAPI's own errors, which are answered with 400 here
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def _check_media_type(given: str) -> None:
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError(
            415,
            f"The body must be JSON and say so with the header Content-Type: application/json, not {given!r:.100}.",
            "unsupported_media_type",
        )


async def _data(request: Request) -> bytes:
    data = bytearray()
    begin = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(begin + BODY_S) as limit:
            async for piece in request.stream():
                data += piece
                if len(data) > MAX_JSON_BYTES:
                    reason = f"at most {MAX_JSON_BYTES} bytes are accepted"
                    raise ApiError(413, f"The body is too large: {reason}.", "too_large")
                limit.reschedule(begin + BODY_S + len(data) / BODY_RATE)
    except ClientDisconnect:
        raise ApiError(400, "The connection was closed before the body was complete.", "incomplete") from None
    except TimeoutError:
        rule = f"it has {BODY_S:g} s, and one more for each {BODY_RATE} bytes that have come"
        raise ApiError(408, f"The body came too slowly: {rule}.", "timeout") from None
    return bytes(data)
