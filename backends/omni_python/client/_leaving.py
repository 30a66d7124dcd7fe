"""How a client leaves a request that has not ended: it asks the server to end it, and reads what still comes.

To break the gRPC call off is the last resort: where that meets the request's last response, Triton before 25.04 crashes
or keeps the request for ever (pull requests 7840 and 8078 of its server).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import grpc
import grpc.aio

from omni_python.client import _protocol

LEAVE_S = 2.0
"""Seconds for a request to end once it was left. A healthy server takes milliseconds."""

RETRY_S = 0.2
"""Until the next try: the server does not know a request that is still on its way."""


def new_key() -> str:
    """By which a request can be cancelled, and nobody guesses."""
    return secrets.token_urlsafe(16)


class Leaving:
    """The requests of a channel that are being left, each on threads of its own, which are soon over."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._threads: set[threading.Thread] = set()

    def leave(self, call: Any, model: str, key: str) -> None:
        """End, in the background, the request of a call that nobody reads any more, and of which no read is open."""
        thread = threading.Thread(target=self._leave, args=(call, model, key), name="omni-client-leave", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the program is ending (Python 3.12), or has too many
            self._threads.discard(thread)
            call.cancel()

    def wait(self) -> None:
        """Until all are over."""
        for thread in list(self._threads):
            thread.join()

    def _leave(self, call: Any, model: str, key: str) -> None:
        end = time.monotonic() + LEAVE_S
        drained = threading.Event()
        try:
            threading.Thread(target=_drain, args=(call, drained), name="omni-client-drain", daemon=True).start()
            while not drained.is_set() and (left := end - time.monotonic()) > 0:
                _check(list(_ask(self._stub, model, key, left)))
                drained.wait(RETRY_S)
        # A RuntimeError where no thread can be started, see `leave`; a ValueError where the channel was closed.
        except (grpc.RpcError, _Refused, RuntimeError, ValueError):
            pass
        finally:
            call.cancel()
            self._threads.discard(threading.current_thread())


class AsyncLeaving:
    """As `Leaving`, in tasks."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._tasks: set[asyncio.Task[None]] = set()

    def leave(self, call: Any, model: str, key: str, reading: asyncio.Future[Any] | None) -> None:
        """`reading` is the read of the call that was not waited for."""
        # asyncio says in no other way that the loop is about to close; a task would not come to its end then.
        if getattr(asyncio.get_running_loop(), "_asyncgens_shutdown_called", False):
            call.cancel()
            return
        self.see_through(asyncio.ensure_future(self._leave(call, model, key, reading)))

    def see_through(self, task: asyncio.Task[Any]) -> None:
        """`wait` for this task, too, for a while."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Until all are over, for `LEAVE_S` at most."""
        await asyncio.sleep(0)  # tasks that were just cancelled leave their requests only now
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVE_S)

    async def _leave(self, call: Any, model: str, key: str, reading: asyncio.Future[Any] | None) -> None:
        holding = _hold_loop(asyncio.current_task())
        await anext(holding)
        draining = asyncio.ensure_future(_drain_async(call, reading))
        try:
            async with asyncio.timeout(LEAVE_S):
                while not draining.done():
                    asked = _ask(self._stub, model, key, LEAVE_S)
                    replies = []
                    while (reply := await asked.read()) is not grpc.aio.EOF:  # no generator: the loop may be closing
                        replies.append(reply)
                    _check(replies)
                    await asyncio.wait((draining,), timeout=RETRY_S)
        except (grpc.RpcError, _Refused, TimeoutError):
            pass
        finally:
            call.cancel()
            draining.cancel()


async def _hold_loop(task: asyncio.Task[None] | None) -> AsyncGenerator[None, None]:
    """Keep the loop, which ends its generators before it closes, from closing before the task is over. It may never be:
    gRPC has tasks of its own, which a loop that is about to close has cancelled by then."""
    try:
        yield
    finally:
        if task is not None and not task.done():
            await asyncio.wait((task,), timeout=RETRY_S)
            task.cancel()
            await asyncio.wait((task,))


def _drain(call: Any, drained: threading.Event) -> None:
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    finally:
        drained.set()


async def _drain_async(call: Any, reading: asyncio.Future[Any] | None) -> None:
    with contextlib.suppress(grpc.RpcError):
        while await (reading or call.read()) is not grpc.aio.EOF:
            reading = None


class _Refused(Exception):
    """This server cannot cancel requests, or the orchestrator is gone."""


def _ask(stub: Any, model: str, key: str, timeout: float) -> Any:
    """The call that asks for the request's end."""
    return stub.ModelStreamInfer(iter((_protocol.cancel_request(model, key),)), timeout=timeout)


def _check(replies: Sequence[Any]) -> None:
    """Raises `_Refused` for what another try does not mend. A server that does not know the request may still get it,
    may have ended it, with responses on their way, or is another one, to which a gateway has led the question."""
    for reply in replies:
        if reply.error_message and not reply.error_message.startswith("NOT_FOUND"):
            raise _Refused
