"""Reads what the server says of itself on /metrics."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request

from omni_python.glue.metric_names import FAMILIES
from omni_python.serve.triton_server import TritonServer

_LINE = re.compile(r"(omni_\w+)\{(.*)\} (\S+)")
_HELD = {family.name for family in FAMILIES if family.at_rest is not None}


def read(server: TritonServer, name: str, **labels: str) -> float:
    """The sum of a metric's values over all label sets that have `labels`."""
    return sum(value for found, of, value in samples(server) if found == name and labels.items() <= of.items())


def held(server: TritonServer, pipeline: str) -> dict[str, float]:
    """What a pipeline's stages, queues, KV caches and relays hold now: only what is not zero."""
    return {
        f"{name} {labels}": value
        for name, labels, value in samples(server)
        if value and labels["pipeline"] == pipeline and name in _HELD
    }


def wait_empty(server: TritonServer, pipeline: str, timeout: float = 10.0) -> None:
    """Metrics are written four times a second: a state has to hold for longer than that to count. A server that has
    just started takes requests a moment before it gives metrics. Of a request that has just ended, or was short, this
    says nothing where their writer was held up: wait for what counts it, too."""
    end = time.monotonic() + timeout
    empty_since = None
    while time.monotonic() < end:
        try:
            left = held(server, pipeline)
        except urllib.error.URLError:
            left = {"no metrics": 1.0}
        if left:
            empty_since = None
        elif empty_since is None:
            empty_since = time.monotonic()
        elif time.monotonic() - empty_since > 0.6:
            return
        time.sleep(0.05)
    left = held(server, pipeline)
    assert not left, f"still held: {left}"


def aborted(server: TritonServer, pipeline: str) -> float:
    """Requests that ended so."""
    return read(server, "omni_requests_total", pipeline=pipeline, state="aborted")


def wait_aborted(server: TritonServer, pipeline: str, count: float, timeout: float = 10.0) -> None:
    """Counters are written a moment later; on a busy machine that can be a long one."""
    end = time.monotonic() + timeout
    while aborted(server, pipeline) < count and time.monotonic() < end:
        time.sleep(0.05)
    assert aborted(server, pipeline) == count


def wait_left(server: TritonServer, pipeline: str, count: float) -> None:
    """Until so many requests were aborted, and nothing of them is held; and no more were."""
    wait_aborted(server, pipeline, count)
    wait_empty(server, pipeline)
    assert aborted(server, pipeline) == count


def in_flight(server: TritonServer, pipeline: str) -> float:
    """Requests that the pipeline has and that have not ended, as it wrote last."""
    return read(server, "omni_requests_in_flight", pipeline=pipeline)


def samples(server: TritonServer) -> list[tuple[str, dict[str, str], float]]:
    """Name, labels and value of every series of this backend."""
    with urllib.request.urlopen(f"http://{server.host}:{server.metrics_port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    return [
        (name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value))
        for name, labels, value in _LINE.findall(text)
    ]
