"""Replay: a recorded input goes into its stage once more, and what comes out goes to whoever asked."""

from __future__ import annotations

import queue
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator

from omni_python.pipeline.recording.taps import InputKind, Tap
from omni_python.pipeline.stage import Stage
from omni_python.proto.codec import CodecError, PayloadDecoder
from omni_python.proto.errors import Cancelled, InvalidArgument, Unavailable
from omni_python.proto.messages import WireError
from omni_python.proto.payload import Payload, UnknownPayload
from omni_python.proto.recording import Input, Output, RecordedPayload, Recording
from omni_python.proto.work import OutgoingMessage

DEADLINE = 600.0
"""Seconds for one replay."""

CANCEL_POLL = 0.1
"""Seconds between looks at whether the client is still there."""


class ReplayTap(Tap):
    """Stands for the stages after this one, and for the coordinator."""

    def __init__(self) -> None:
        self.outputs: queue.SimpleQueue[OutgoingMessage | None] = queue.SimpleQueue()
        """None when the stage is done."""

    def take(self, kind: InputKind, source: str, payload: Payload | None) -> Payload | None:
        return payload

    def give(self, message: OutgoingMessage) -> bool:
        self.outputs.put(message)
        return True

    def end(self) -> None:
        self.outputs.put(None)


def replay(stage: Stage, recording: Recording, is_cancelled: Callable[[], bool]) -> Iterator[Output]:
    """The outputs of `stage` for the inputs of `recording`, as they come: until its result or an error, or, of a
    request that was aborted, as many as were recorded. Leaving the iterator aborts the replay.

    Raises `InvalidArgument` for payloads that are malformed or of a type that this process does not know, `Cancelled`
    when the client has left, `Unavailable` where the stage drops its requests, as with a coordinator that died.
    """
    payloads = _decoded(recording.inputs)
    limit = None if any(output.kind != "stream" for output in recording.outputs) else len(recording.outputs)
    request_id = f"replay-{secrets.token_hex(8)}"
    tap = stage.taps[request_id] = ReplayTap()
    try:
        _feed(stage, request_id, recording.inputs, payloads)
        del payloads
        given = 0
        while limit is None or given < limit:
            try:
                message = tap.outputs.get(timeout=CANCEL_POLL)
            except queue.Empty:
                if is_cancelled():
                    raise Cancelled("the client cancelled the replay") from None
                continue
            if message is None:
                raise Unavailable(f"stage {stage.spec.name} dropped the replay")
            given += 1
            yield _output(message)
            if message.type != "stream":
                return
    finally:
        stage.abort(request_id)


def _decoded(inputs: tuple[Input, ...]) -> list[Payload | None]:
    decoder = PayloadDecoder()
    try:
        return [None if given.payload is None else given.payload.decode(decoder) for given in inputs]
    except (CodecError, UnknownPayload) as error:
        raise InvalidArgument(f"the recording does not fit this stage: {error}") from None


def _feed(stage: Stage, request_id: str, inputs: tuple[Input, ...], payloads: list[Payload | None]) -> None:
    deadline = time.monotonic() + DEADLINE
    chunks: Counter[str] = Counter()
    for given, payload in zip(inputs, payloads, strict=True):
        if payload is None:
            stage.on_stream_done(request_id, given.source, chunks[given.source], deadline)
        elif given.kind == "chunk":
            stage.on_chunk(request_id, given.source, chunks[given.source], payload, deadline)
            chunks[given.source] += 1
        else:
            stage.on_payload(request_id, given.source, payload, deadline)


def _output(message: OutgoingMessage) -> Output:
    match message.type:
        case "error":
            return Output("error", error=WireError.of(message.data))
        case kind:
            return Output(kind, message.target or "", RecordedPayload.of(message.data))
