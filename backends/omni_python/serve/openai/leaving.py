"""Ends what a client waits for when it leaves: frameworks tell of that only while they stream an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from omni_python.serve.openai.errors import ApiError

T = TypeVar("T")

CLIENT_LEFT = 499
"""The status that nginx has for this; there is nobody to read it."""


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Where the client leaves before, `work` is cancelled, and with it the pipeline's request, and
    `ApiError` is raised. The request's body must have been read."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_leaves(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ApiError(CLIENT_LEFT, "The client left before there was an answer.", "client_left")
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
