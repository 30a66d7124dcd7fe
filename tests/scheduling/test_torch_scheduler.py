"""The scheduler's own decisions, with a runner that counts instead of computing a model."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from omni_python.layers.kv_cache import PAGE_TOKENS
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.torch_scheduler import TorchScheduler
from tests.scheduling.counting_runner import CountingRequest, CountingRunner, Job, Step


@pytest.fixture
def runner() -> CountingRunner:
    return CountingRunner()


@pytest.fixture
def scheduler(runner: CountingRunner) -> Iterator[TorchScheduler[CountingRequest]]:
    scheduler = TorchScheduler(runner, max_running=3, kv_tokens=10 * PAGE_TOKENS, prefill_tokens=20)
    yield scheduler
    runner.hold.set()
    scheduler.stop()


def submit(scheduler: TorchScheduler[CountingRequest], request_id: str, job: Any) -> None:
    scheduler.inbox.put(IncomingMessage(request_id, "new_request", job))


def chunk(scheduler: TorchScheduler[CountingRequest], request_id: str) -> None:
    scheduler.inbox.put(IncomingMessage(request_id, "stream_chunk", None))


def ends(scheduler: TorchScheduler[CountingRequest], count: int) -> dict[str, OutgoingMessage]:
    """The last messages of `count` requests."""
    found: dict[str, OutgoingMessage] = {}
    while len(found) < count:
        message = scheduler.outbox.get(timeout=5)
        assert message is not None
        if message.type != "stream":
            found[message.request_id] = message
    return found


def until_idle(scheduler: TorchScheduler[CountingRequest]) -> None:
    deadline = time.monotonic() + 5
    while any(scheduler.stats().values()):
        assert time.monotonic() < deadline, scheduler.stats()
        time.sleep(0.002)


def test_prompts_join_while_others_decode(scheduler: TorchScheduler[CountingRequest], runner: CountingRunner) -> None:
    for name in "abc":
        submit(scheduler, name, Job(prompt_len=9, max_tokens=4))
    scheduler.start()
    results = ends(scheduler, 3)
    assert all(message.data == 4 for message in results.values())
    assert [step.ids for step in runner.steps] == [
        ["a", "b"],  # 18 of at most 20 prompt tokens
        ["a", "b", "c"],  # c's prompt, while a and b go on
        ["a", "b", "c"],
        ["a", "b", "c"],
        ["c"],
    ]
    assert [step.prompt_tokens for step in runner.steps] == [18, 9, 0, 0, 0]
    until_idle(scheduler)


def test_a_prompt_longer_than_the_budget_runs_by_itself(
    scheduler: TorchScheduler[CountingRequest], runner: CountingRunner
) -> None:
    submit(scheduler, "long", Job(prompt_len=60, max_tokens=2))
    submit(scheduler, "short", Job(prompt_len=5, max_tokens=2))
    scheduler.start()
    ends(scheduler, 2)
    assert runner.steps[0] == Step(["long"], 60)


def test_more_than_fit_wait_in_order(scheduler: TorchScheduler[CountingRequest], runner: CountingRunner) -> None:
    """10 pages: a holds 6, so b (5) waits, and c (1), though it would fit, does not overtake it."""
    page = PAGE_TOKENS
    submit(scheduler, "a", Job(prompt_len=5 * page, max_tokens=page))
    submit(scheduler, "b", Job(prompt_len=5 * page - 3, max_tokens=3))
    submit(scheduler, "c", Job(prompt_len=3, max_tokens=2))
    scheduler.start()
    ends(scheduler, 3)
    order = [step.ids[0] for step in runner.steps]
    assert order.index("b") == page
    assert all("c" not in step.ids for step in runner.steps[:page])
    assert len(runner.owned["a"]) == 6 and len(runner.owned["b"]) == 5
    until_idle(scheduler)


def test_no_more_run_than_allowed(scheduler: TorchScheduler[CountingRequest], runner: CountingRunner) -> None:
    for n in range(8):
        submit(scheduler, str(n), Job(prompt_len=2, max_tokens=2))
    scheduler.start()
    ends(scheduler, 8)
    assert max(len(step.ids) for step in runner.steps) == 3


def test_what_can_never_fit_is_refused_at_once(scheduler: TorchScheduler[CountingRequest]) -> None:
    scheduler.start()
    submit(scheduler, "long", Job(prompt_len=100, max_tokens=61))
    submit(scheduler, "longer", Job(prompt_len=200, max_tokens=1))
    submit(scheduler, "just", Job(prompt_len=100, max_tokens=60))
    results = ends(scheduler, 3)
    assert isinstance(results["long"].data, InvalidArgument)
    assert "max_tokens of at most 60" in str(results["long"].data)
    assert "shorten it" in str(results["longer"].data)
    assert results["just"].type == "result"
    until_idle(scheduler)


def test_rows_without_input_wait_without_holding_up_others(
    scheduler: TorchScheduler[CountingRequest], runner: CountingRunner
) -> None:
    scheduler.start()
    submit(scheduler, "gated", Job(gated=True, max_tokens=3))
    submit(scheduler, "free", Job(max_tokens=5))
    assert list(ends(scheduler, 1)) == ["free"]
    assert scheduler.stats()["running"] == 1
    chunk(scheduler, "gated")
    for _ in range(2):
        assert scheduler.outbox.get(timeout=5).type == "stream"  # type: ignore[union-attr]
        with pytest.raises(queue.Empty):
            scheduler.outbox.get(timeout=0.05)
        chunk(scheduler, "gated")
    assert list(ends(scheduler, 1)) == ["gated"]
    assert [step.ids for step in runner.steps].count(["gated"]) >= 2


def test_the_end_of_the_stream_may_end_the_request(scheduler: TorchScheduler[CountingRequest]) -> None:
    scheduler.start()
    submit(scheduler, "gated", Job(gated=True))
    scheduler.inbox.put(IncomingMessage("gated", "stream_done"))
    assert ends(scheduler, 1)["gated"].data == 0
    until_idle(scheduler)


def test_chunks_of_unknown_requests_are_ignored(scheduler: TorchScheduler[CountingRequest]) -> None:
    scheduler.start()
    chunk(scheduler, "nobody")
    scheduler.inbox.put(IncomingMessage("nobody", "stream_done"))
    submit(scheduler, "a", Job())
    assert list(ends(scheduler, 1)) == ["a"]
    until_idle(scheduler)


@pytest.mark.parametrize("where", ["open", "chunk", "row", "emit"])
def test_one_failing_request_fails_alone(
    scheduler: TorchScheduler[CountingRequest], runner: CountingRunner, where: str
) -> None:
    runner.hold.clear()
    scheduler.start()
    submit(scheduler, "bad", Job(fail_in=where, gated=where == "chunk"))
    submit(scheduler, "good", Job(max_tokens=6))
    chunk(scheduler, "bad")
    runner.hold.set()
    results = ends(scheduler, 2)
    assert results["bad"].type == "error" and "failed" in str(results["bad"].data)
    assert results["good"].data == 6
    until_idle(scheduler)
    if where == "row":
        assert runner.cache.cleared == runner.owned["bad"], "its pages may hold values that are no numbers"


def test_a_failing_step_fails_its_batch_and_the_loop_goes_on(
    scheduler: TorchScheduler[CountingRequest], runner: CountingRunner
) -> None:
    submit(scheduler, "mate", Job(max_tokens=9))
    submit(scheduler, "bad", Job(fail_in="step"))
    scheduler.start()
    results = ends(scheduler, 2)
    assert {message.type for message in results.values()} == {"error"}
    until_idle(scheduler)
    submit(scheduler, "next", Job())
    assert ends(scheduler, 1)["next"].type == "result"


def test_an_abort_frees_before_the_next_step(
    scheduler: TorchScheduler[CountingRequest], runner: CountingRunner
) -> None:
    runner.hold.clear()
    scheduler.start()
    for name in "abcd":  # d waits
        submit(scheduler, name, Job(max_tokens=40, prompt_len=2))
    while scheduler.stats()["waiting"] != 1 or scheduler.stats()["running"] != 3:
        time.sleep(0.001)
    scheduler.abort("a")
    scheduler.abort("d")
    scheduler.abort("unknown")
    runner.hold.set()
    ends(scheduler, 2)
    until_idle(scheduler)
    assert [step.ids for step in runner.steps if "a" in step.ids] == [["a", "b", "c"]]
    assert not any("d" in step.ids for step in runner.steps)


def test_an_aborted_id_can_be_used_again(scheduler: TorchScheduler[CountingRequest]) -> None:
    scheduler.start()
    for _ in range(20):
        submit(scheduler, "same", Job(gated=True))
        scheduler.abort("same")
    submit(scheduler, "same", Job(max_tokens=2))
    assert ends(scheduler, 1)["same"].data == 2
    until_idle(scheduler)


def test_an_idle_scheduler_uses_no_time(scheduler: TorchScheduler[CountingRequest]) -> None:
    scheduler.start()
    submit(scheduler, "gated", Job(gated=True))
    time.sleep(0.1)
    assert scheduler._thread.ident is not None
    its_clock = time.pthread_getcpuclockid(scheduler._thread.ident)
    before = time.clock_gettime(its_clock)
    time.sleep(0.3)
    assert time.clock_gettime(its_clock) - before < 0.05


def test_stop_ends_the_thread_with_requests_still_there(runner: CountingRunner) -> None:
    scheduler = TorchScheduler(runner, max_running=1, kv_tokens=64)
    scheduler.start()
    submit(scheduler, "gated", Job(gated=True))
    scheduler.stop()
    assert not any(thread.name == "ar-scheduler" and thread.is_alive() for thread in threading.enumerate())


def test_sizes_that_make_no_sense_are_refused(runner: CountingRunner) -> None:
    with pytest.raises(InvalidArgument, match="kv_tokens"):
        TorchScheduler(runner, max_running=1, kv_tokens=3)
