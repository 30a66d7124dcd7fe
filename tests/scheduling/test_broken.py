"""A scheduler that can never go on says so, once: its process then ends and is brought back."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omni_python.layers.kv_cache import PAGE_TOKENS
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.payload import Payload, TextOutput
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling import base, omni_scheduler
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.loop import LoopScheduler
from omni_python.scheduling.omni_scheduler import OmniScheduler
from omni_python.scheduling.prepared import PreparedScheduler
from omni_python.scheduling.simple import SimpleScheduler
from omni_python.scheduling.torch_scheduler import TorchScheduler
from tests.scheduling.counting_runner import CountingRunner, Job

LONG = 20.0


class Failing(LoopScheduler):
    def __init__(self, where: str) -> None:
        super().__init__("failing")
        self._where = where

    def take(self, message: IncomingMessage) -> None:
        if self._where == "take":
            raise ValueError("take failed")

    def drop(self, request_id: str) -> None:
        if self._where == "drop":
            raise ValueError("drop failed")

    def work(self) -> bool:
        if self._where == "work":
            raise ValueError("work failed")
        return False


def heard(scheduler: Scheduler) -> queue.SimpleQueue[str]:
    """The reasons with which the scheduler gives up."""
    reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
    scheduler.on_broken = reasons.put
    return reasons


def ask(scheduler: Scheduler, *names: str) -> None:
    for name in names:
        scheduler.inbox.put(IncomingMessage(name, "new_request", TextOutput(name)))


@pytest.mark.parametrize("where", ["work", "drop"])
def test_a_loop_that_ends_unasked(where: str) -> None:
    scheduler = Failing(where)
    reasons = heard(scheduler)
    scheduler.start()
    ask(scheduler, "a")
    scheduler.abort("a")
    assert reasons.get(timeout=LONG) == f"ended: its scheduler failed (ValueError: {where} failed)"
    scheduler.stop()
    assert reasons.empty()


def test_a_request_that_fails_does_not_end_the_loop() -> None:
    scheduler = Failing("take")
    reasons = heard(scheduler)
    scheduler.start()
    ask(scheduler, "a", "b")
    assert {scheduler.outbox.get(timeout=LONG).request_id for _ in "ab"} == {"a", "b"}  # type: ignore[union-attr]
    scheduler.stop()
    assert reasons.empty()


def failing_began(request_id: str) -> None:
    raise ValueError("began failed")


def test_a_worker_that_ends_unasked() -> None:
    scheduler = SimpleScheduler(lambda payload: payload, workers=2)
    reasons = heard(scheduler)
    scheduler.on_began = failing_began
    ask(scheduler, "a", "b")
    scheduler.start()
    assert "ValueError: began failed" in reasons.get(timeout=LONG)
    scheduler.stop()
    assert reasons.empty(), "it is told once, of however many threads"


@pytest.mark.parametrize("outer", [True, False])
def test_a_prepared_scheduler_speaks_for_the_one_inside(outer: bool) -> None:
    inner = SimpleScheduler(lambda payload: payload)
    scheduler = PreparedScheduler(inner, lambda payload, token: payload, lambda payload: outer, most=1)
    reasons = heard(scheduler)
    scheduler.on_began = failing_began
    scheduler.start()
    ask(scheduler, "a")
    assert "ValueError: began failed" in reasons.get(timeout=LONG)
    scheduler.stop()


def test_a_request_of_which_nobody_can_say_whether_it_waits_fails_alone() -> None:
    inner = SimpleScheduler(lambda payload: payload)

    def waits(payload: TextOutput) -> bool:
        return bool(1 / (payload.text != "bad"))

    scheduler = PreparedScheduler(inner, lambda payload, token: payload, waits, most=1)
    reasons = heard(scheduler)
    scheduler.start()
    ask(scheduler, "bad", "good")
    got = {message.request_id: message.type for _ in range(2) if (message := scheduler.outbox.get(timeout=LONG))}
    assert got == {"bad": "error", "good": "result"}
    scheduler.stop()
    assert reasons.empty()


# ---- devices


def lost() -> str:
    return "GPU 3: an illegal memory access"


def of_simple(error: Exception) -> Scheduler:
    def compute(payload: TextOutput) -> Payload:
        raise error

    return SimpleScheduler(compute)


def of_batches(error: Exception) -> Scheduler:
    def compute(payloads: Sequence[TextOutput]) -> list[Payload]:
        raise error

    return SimpleScheduler(compute_batch=compute, max_batch_size=4)


def of_loop(error: Exception) -> Scheduler:
    class Taking(Failing):
        def take(self, message: IncomingMessage) -> None:
            raise error

    return Taking("nowhere")


@pytest.mark.parametrize("made", [of_simple, of_batches, of_loop])
def test_what_fails_on_a_lost_device(made: Callable[[Exception], Scheduler], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "lost_device", lost)
    scheduler = made(RuntimeError("CUDA error"))
    reasons = heard(scheduler)
    ask(scheduler, "a", "b")
    scheduler.start()
    assert reasons.get(timeout=LONG) == "ended: it lost GPU 3: an illegal memory access"
    # Where the process is not ended at once, everybody is told all the same.
    assert {scheduler.outbox.get(timeout=LONG).request_id for _ in "ab"} == {"a", "b"}  # type: ignore[union-attr]
    scheduler.stop()
    assert reasons.empty()


def test_a_device_that_is_lost_in_a_step_of_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the step held cannot be given back either."""

    class LostEngine:
        capacity = 1

        def __init__(self, *args: object) -> None:
            pass

        def step(self, ready: object) -> bool:
            raise RuntimeError("CUDA error")

        def fail_batch(self) -> list[str]:
            raise RuntimeError("CUDA error, too")

        def close(self) -> None:
            pass

    monkeypatch.setattr(base, "lost_device", lost)
    monkeypatch.setattr(omni_scheduler, "Engine", LostEngine)
    config: Any = SimpleNamespace(feedback=False, max_running=1)
    unused: Any = None
    scheduler: OmniScheduler[Any] = OmniScheduler(lambda engine: unused, unused, config)
    reasons = heard(scheduler)
    scheduler.start()
    scheduler.inbox.put(None)
    assert reasons.get(timeout=LONG) == "ended: it lost GPU 3: an illegal memory access"
    scheduler.stop()
    assert reasons.empty()


@pytest.mark.parametrize("error", [ValueError("broken"), InvalidArgument("not valid")])
def test_other_failures_are_the_requests_own(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()

    def fine() -> None:
        looked.set()

    monkeypatch.setattr(base, "lost_device", fine)
    scheduler = of_loop(error)
    reasons = heard(scheduler)
    ask(scheduler, "a")
    scheduler.start()
    assert scheduler.outbox.get(timeout=LONG) is not None
    scheduler.stop()
    assert reasons.empty()
    assert looked.is_set() == isinstance(error, ValueError), "what a client asked wrongly waits for no device"


def test_pages_that_cannot_be_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever got them next would read what is in them."""
    runner = CountingRunner()
    scheduler = TorchScheduler(runner, max_running=2, kv_tokens=4 * PAGE_TOKENS)
    reasons = heard(scheduler)
    monkeypatch.setattr(runner.cache, "clear", lambda pages: 1 / 0)
    scheduler.inbox.put(IncomingMessage("a", "new_request", Job(fail_in="row")))
    scheduler.start()
    assert "could not clear the KV cache" in reasons.get(timeout=LONG)
    message = scheduler.outbox.get(timeout=LONG)
    assert message is not None and message.type == "error"
    scheduler.stop()


CHILD = """
import torch
from omni_python.proto.payload import TextOutput
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.lost_device import lost_device
from omni_python.scheduling.simple import SimpleScheduler

assert lost_device() is None
table = torch.arange(4, device="cuda:0")
assert lost_device() is None

def compute(payload):
    if payload.text == "memory":
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda:0")
    return TextOutput(str(table[torch.tensor([1 << 20], device="cuda:0")].tolist()))

scheduler = SimpleScheduler(compute)
scheduler.start()
for text in ("memory", "index"):
    scheduler.inbox.put(IncomingMessage(text, "new_request", TextOutput(text)))
    print(scheduler.outbox.get(timeout=60).data, flush=True)
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: pytest -m gpu where there is one")
def test_a_process_whose_gpu_fails_for_good_ends() -> None:
    """And one whose GPU has no memory left for a request does not."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=200)
    assert done.returncode == -9, done.stderr
    assert "out of memory" in done.stdout and "device-side assert" not in done.stdout
    assert "this process ends: ended: it lost GPU 0: CUDA error: device-side assert" in done.stderr
