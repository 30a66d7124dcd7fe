"""Far more requests than a pipeline can take."""

from __future__ import annotations

import asyncio

import pytest

from omni_python.client import AsyncOmniClient, DeadlineExceeded, Unavailable
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics

REQUESTS, PER_SECOND = 600, 150
"""Of which the line can serve 20 a second, since each works for 50 ms."""


@pytest.mark.alone
def test_a_server_that_gets_too_much_goes_on_serving_in_time(noop_server: TritonServer) -> None:
    """At first all are admitted, and end at their deadlines; then those that would are refused, and others served. Once
    more where the machine paused, which makes all late that wait."""
    seen = set[str]()
    for _ in range(3):
        ends = asyncio.run(too_much(noop_server.grpc_url))
        assert len(ends) == REQUESTS
        seen.update(ends)
        later = ends[REQUESTS // 2 :]
        metrics.wait_empty(noop_server, "noop_line")
        if later.count("served") > later.count("late"):
            break
    assert later.count("served") > later.count("late")
    assert seen == {"served", "late", "refused"}


async def too_much(url: str) -> list[str]:
    """The end of each request, in the order of sending."""
    async with AsyncOmniClient(url, "noop_line") as client:
        start = asyncio.get_running_loop().time()
        asked = []
        for number in range(REQUESTS):
            asked.append(asyncio.create_task(ask(client)))
            await asyncio.sleep(start + number / PER_SECOND - asyncio.get_running_loop().time())
        return await asyncio.gather(*asked)


async def ask(client: AsyncOmniClient) -> str:
    try:
        await client.chat("x", sampling={"delay": 0.05, "timeout_ms": 1000})
    except DeadlineExceeded:
        return "late"
    except Unavailable as error:
        assert "at the present pace one more would take" in str(error)
        return "refused"
    return "served"
