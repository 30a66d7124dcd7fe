"""Recording and replaying without Triton: real stages, sockets and files."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.pipeline.recording.recorder import new_order, recording_path
from omni_python.pipeline.recording.replay import replay
from omni_python.proto.errors import InvalidArgument, OmniError, Unsupported
from omni_python.proto.messages import RecordOrder
from omni_python.proto.recording import RECORD_DIRECTORY, Input, Output, Recording, decode_recording
from tests.pipeline.harness import Pipeline, Sink, request, running


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For sockets, and in its folder `kept` for recordings."""
    with tempfile.TemporaryDirectory(prefix="omni-test-") as path:
        (Path(path) / "kept").mkdir()
        monkeypatch.setenv(RECORD_DIRECTORY, str(Path(path) / "kept"))
        yield Path(path)


@pytest.fixture
def line(directory: Path) -> Iterator[Pipeline]:
    with running(NoopLinePipelineConfig(), directory) as pipeline:
        yield pipeline


def recorded(
    pipeline: Pipeline, directory: Path, *stages: str, **sampling: object
) -> tuple[list[Recording], OmniError | None]:
    """Ask for recordings, and read them."""
    spec = pipeline.coordinator.spec
    order = new_order(directory / "kept", stages, [s for group in spec.stages.values() for s in group], (), "{}")
    sink = Sink()
    pipeline.coordinator.submit(request(**sampling), sink, order=order)
    error = None
    try:
        sink.wait()
    except OmniError as failure:
        error = failure
    return [read(recording_path(directory / "kept", order.name, stage)) for stage in stages], error


def read(path: Path) -> Recording:
    end = time.monotonic() + 10
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return decode_recording(path.read_bytes())


def test_a_recording_has_the_stages_inputs_and_outputs(line: Pipeline, directory: Path) -> None:
    nbytes = random.randrange(1, 100_000)
    [b, c], error = recorded(line, directory, "b", "c", nbytes=nbytes)
    assert error is None
    assert (b.header.pipeline, b.header.stage, b.header.model) == ("noop_line", "b", "noop_line_b")
    assert [(given.kind, given.source) for given in b.inputs] == [("payload", "a")]
    assert [(given.kind, given.source) for given in c.inputs] == [("payload", "b")]
    [payload] = [given.payload for given in b.inputs]
    assert payload is not None
    assert np.array_equal(payload.plain()["data"], np.arange(nbytes).astype(np.uint8))
    [output] = c.outputs
    assert output.kind == "result" and output.payload is not None
    assert f'"nbytes":{nbytes}' in output.payload.plain()["text"]
    assert not list((directory / "kept").glob("*.part"))
    line.wait_empty()


def test_a_request_without_an_order_is_not_recorded(line: Pipeline, directory: Path) -> None:
    _, sink = line.submit(nbytes=10)
    sink.wait()
    assert list((directory / "kept").iterdir()) == []


def test_chunks_are_recorded_in_order_and_replayed(directory: Path) -> None:
    chunks = random.randrange(5, 30)
    with running(NoopForwardPipelineConfig(), directory) as pipeline:
        [b], _ = recorded(pipeline, directory, "b", chunks=chunks, chunk_bytes=7)
        assert sorted(given.kind for given in b.inputs) == ["chunk"] * chunks + ["done", "payload"]
        stage = pipeline.processes["b"].stages["b"]
        again = list(replay(stage, b, lambda: False))
        assert [output.kind for output in again] == ["stream"] * chunks + ["result"]
        assert [output.payload for output in again] == [output.payload for output in b.outputs]
        pipeline.wait_empty()


def test_a_failure_is_recorded_and_fails_again(line: Pipeline, directory: Path) -> None:
    [b], error = recorded(line, directory, "b", fail_stage="b")
    assert error is not None
    [output] = b.outputs
    assert output.kind == "error" and output.error is not None and "stage b fails" in output.error.message
    assert list(replay(line.processes["b"].stages["b"], b, lambda: False)) == [output]
    line.wait_empty()


def test_a_replay_that_is_left_holds_nothing(line: Pipeline, directory: Path) -> None:
    [b], _ = recorded(line, directory, "b", delay=1.0)
    with pytest.raises(OmniError, match="cancelled"):
        list(replay(line.processes["b"].stages["b"], b, lambda: True))
    line.wait_empty()


def test_replays_of_another_stages_payloads_are_refused(line: Pipeline, directory: Path) -> None:
    [b], _ = recorded(line, directory, "b", nbytes=5)
    given = b.inputs[0].payload
    assert given is not None
    import msgspec

    for changed in (
        msgspec.structs.replace(given, type="payloads.NoSuch"),
        msgspec.structs.replace(given, tensors=given.tensors[:-1]),
        msgspec.structs.replace(given, body=given.body[:-3]),
    ):
        items: tuple[Input | Output, ...] = (msgspec.structs.replace(b.inputs[0], payload=changed), *b.outputs)
        with pytest.raises(InvalidArgument, match="does not fit this stage"):
            list(replay(line.processes["b"].stages["b"], Recording(b.header, items), lambda: False))
    line.wait_empty()


def test_orders_are_checked(directory: Path) -> None:
    with pytest.raises(Unsupported, match="--record-dir"):
        new_order(None, ["a"], ["a"], (), "{}")
    with pytest.raises(InvalidArgument, match="no stage 'x'; the stages are a, b"):
        new_order(directory, ["x"], ["a", "b"], (), "{}")
    with pytest.raises(InvalidArgument, match="stage b does not work on this request"):
        new_order(directory, ["b"], ["a", "b"], ["b"], "{}")
    first, second = (new_order(directory, ["a"], ["a"], (), "{}") for _ in range(2))
    assert first.name != second.name


@pytest.mark.parametrize("name", ["../x", "a/b", "", "x" * 65, "a\n", "."])
def test_a_message_cannot_name_a_file_elsewhere(name: str) -> None:
    import msgspec

    data = msgspec.msgpack.encode(RecordOrder(name, ("a",)))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=RecordOrder)
