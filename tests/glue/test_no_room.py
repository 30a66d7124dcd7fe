"""Responses for which Triton's shared memory has no room: their requests must end all the same."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from omni_python.proto.errors import Cancelled, OmniError, Unavailable
from omni_python.proto.payload import AudioOutput, TextOutput
from tests.glue.fake_triton import FINAL, OLD, OldResponse, Sender, TritonModelException
from tests.glue.loading import glue_on

OUTPUTS = ("text_output", "audio_output", "audio_sample_rate", "finish_reason", "usage")


class FullSender(Sender):
    """There is room for a response only where `has_room(response)`, and always for none. As in the stub, the final flag
    closes the sender before room is looked for (src/response_sender.cc, r24.10: UpdateStateAndCounters); `ended` is
    what Triton has heard."""

    def __init__(self, has_room: Callable[[OldResponse], bool]) -> None:
        super().__init__(OUTPUTS)
        self._has_room = has_room
        self._is_closed = False

    def send(self, response: OldResponse | None = None, flags: int = 0) -> None:
        if self._is_closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        self._is_closed = bool(flags & FINAL)
        if response is not None and not self._has_room(response):
            raise TritonModelException("Failed to increase the shared memory pool size")
        super().send(response, flags)


@pytest.fixture(params=[True, False], ids=["seen", "unseen"])
def make_sink(request: pytest.FixtureRequest) -> Iterator[Callable[[FullSender, bool], Any]]:
    """In a process that sees beforehand, or does not, that memory is short."""
    with glue_on(OLD.module()), pytest.MonkeyPatch.context() as patch:
        requests = importlib.import_module("omni_python.glue.request")
        responses = importlib.import_module("omni_python.glue.response")
        last = importlib.import_module("omni_python.glue.last_response")
        patch.setattr(last, "SPARE_MEMORY", 1 << 62 if request.param else -1 << 62)
        patch.setattr(responses, "LEAVE", 0.0)

        def make(sender: FullSender, stream: bool) -> Any:
            parsed = requests.parse_request({"text_input": np.array([b"x"], np.object_), "stream": np.array([stream])})
            return responses.TritonSink(sender, parsed, OUTPUTS)

        yield make


seen = pytest.mark.parametrize("make_sink", [True], ids=["seen"], indirect=True)


def error(sender: FullSender) -> str:
    """How the request has ended."""
    assert sender.ended.is_set(), "Triton waits for its end"
    [*_, last] = sender.sent
    triton_error = last.error()
    assert triton_error is not None
    return triton_error.message()


@pytest.mark.parametrize("is_lost", [False, True], ids=["then", "before"])
@pytest.mark.parametrize("end", [Unavailable("the vocoder died"), Cancelled("the client left")])
def test_a_request_that_fails_after_a_part_ends_without_room_for_the_part_s_end(
    make_sink: Callable[..., Any], is_lost: bool, end: OmniError
) -> None:
    has_room = True
    sender = FullSender(lambda response: has_room or response.has_error())
    sink = make_sink(sender, True)
    sink.result("decode", TextOutput("hello", "stop"))
    has_room = False
    if is_lost:
        with pytest.raises(TritonModelException):
            sink.chunk(AudioOutput(np.zeros(8, np.float32), 24_000))
    with pytest.raises(TritonModelException, match="Failed to increase"):
        sink.fail(end)
    assert sender.ended.wait(10)
    assert error(sender) == f"{end.code.name}: {end}"
    assert not sink.is_cancelled()


def test_a_request_that_fails_ends_even_without_room_for_its_error(make_sink: Callable[..., Any]) -> None:
    has_room = True
    sender = FullSender(lambda response: has_room)
    sink = make_sink(sender, True)
    sink.result("decode", TextOutput("hello", "stop"))
    has_room = False
    with pytest.raises(TritonModelException, match="Failed to increase"):
        sink.fail(Unavailable("the vocoder died"))
    assert sender.ended.is_set()


@seen
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_even_without_room_for_an_error(make_sink: Callable[..., Any], stream: bool) -> None:
    has_room = True
    sender = FullSender(lambda response: has_room)
    sink = make_sink(sender, stream)
    sink.result("decode", TextOutput("hello", "stop"))
    has_room = False
    with pytest.raises(TritonModelException, match="Failed to increase"):
        sink.finish([])
    assert sender.ended.is_set()


@seen
def test_a_whole_answer_without_room_ends_with_an_error(make_sink: Callable[..., Any]) -> None:
    sender = FullSender(lambda response: response.has_error())
    sink = make_sink(sender, False)
    sink.result("code2wav", AudioOutput(np.zeros(48_000, np.float32), 24_000, "stop"))
    with pytest.raises(TritonModelException, match="Failed to increase"):
        sink.finish([])
    assert error(sender).startswith("UNAVAILABLE: the answer could not be sent: Failed to increase")


@pytest.mark.parametrize("samples", [8, 48_000])
def test_a_whole_answer_is_one_response(make_sink: Callable[..., Any], samples: int) -> None:
    sender = FullSender(lambda response: True)
    sink = make_sink(sender, False)
    sink.result("code2wav", AudioOutput(np.zeros(samples, np.float32), 24_000, "stop"))
    sink.finish([])
    [response] = sender.wait()  # where memory is short a second one follows, with the final flag alone
    assert [tensor.name() for tensor in response.output_tensors()][:2] == ["audio_output", "audio_sample_rate"]
