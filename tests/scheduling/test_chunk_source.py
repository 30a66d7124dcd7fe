"""The no-op source of chunks, which takes turns as a model does that computes a step of all its requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omni_python.models.noop.stages import NoopFailure, create_chunk_source
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import Message, OmniRequest, TextPart
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.fair_queue import DirectQueue
from tests.waiting import wait_until

ENDLESS = 1_000_000_000


@pytest.fixture
def made() -> list[OutgoingMessage]:
    return []


@pytest.fixture
def source(made: list[OutgoingMessage]) -> Iterator[Scheduler]:
    source = create_chunk_source()
    source.outbox = DirectQueue(made.append)
    yield source
    source.stop()


def ask(source: Scheduler, request_id: str, **sampling: object) -> None:
    request = OmniRequest([Message("user", [TextPart("x")])], sampling=sampling, stream=True)
    source.inbox.put(IncomingMessage(request_id, "new_request", request))


def test_each_request_has_a_chunk_in_turn(source: Scheduler, made: list[OutgoingMessage]) -> None:
    ask(source, "a", chunks=3)
    ask(source, "b", chunks=5)
    ask(source, "c", chunks=0)
    source.start()
    wait_until(lambda: len(made) == 4 + 6 + 1)
    assert "".join(message.request_id for message in made) == "abc" + "ab" * 3 + "bb"
    assert [message.request_id for message in made if message.type == "result"] == ["c", "a", "b"]
    assert source.stats() == {"running": 0}
    assert source.batch_sizes.sum == 4 + 6 + 1, "in each step, those that it had"


def test_a_request_that_comes_later_has_its_turns_and_an_abort_ends_one(
    source: Scheduler, made: list[OutgoingMessage]
) -> None:
    ask(source, "long", chunks=ENDLESS)
    source.start()
    wait_until(lambda: bool(made))
    ask(source, "short", chunks=2)
    wait_until(lambda: any(message.type == "result" for message in made))
    assert source.stats() == {"running": 1}
    source.abort("long")
    wait_until(lambda: source.stats() == {"running": 0})
    ended = len(made)
    ask(source, "next", chunks=1)
    wait_until(lambda: len(made) == ended + 2)
    assert [message.request_id for message in made[ended:]] == ["next"] * 2


def test_an_error_is_of_its_request_alone(source: Scheduler, made: list[OutgoingMessage]) -> None:
    ask(source, "fails", chunks=3, fail_stage="a")
    ask(source, "wrong", chunk=3)
    ask(source, "good", chunks=1)
    source.start()
    wait_until(lambda: len(made) == 4)
    errors = {message.request_id: message.data for message in made if message.type == "error"}
    assert isinstance(errors.pop("fails"), NoopFailure)
    assert isinstance(errors.pop("wrong"), InvalidArgument)
    assert errors == {} and [message.request_id for message in made].count("good") == 2
