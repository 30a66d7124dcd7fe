"""The client."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from types import TracebackType
from typing import Unpack

import numpy as np

from omni_python.client._events import Answer, Event, EventReader, described, told_trace
from omni_python.client._http import is_http
from omni_python.client._http_transport import HttpTransport
from omni_python.client._inputs import DESCRIBE, RequestOptions, request_inputs, time_limit, trace_inputs
from omni_python.client._regions import SharedMemory, checked_kind
from omni_python.client._transport import Transport
from omni_python.proto.info import PipelineInfo
from omni_python.proto.trace import Trace


class OmniClient:
    """Talks to one pipeline of one server.

        with OmniClient("localhost:8001", "qwen3_omni") as client:
            answer = client.chat("What is in this picture?", images=["photo.jpg"])
            print(answer.text)
            answer.save_wav("answer.wav")

            for event in client.stream("And now sing it.", voice="chelsie"):
                ...  # TextDelta, AudioChunk, and at last Finished

    Thread-safe; any number of requests can run at once. Nothing is sent before the first request.
    """

    def __init__(
        self, url: str = "localhost:8001", pipeline: str = "qwen3_omni", *, shared_memory: SharedMemory | None = None
    ) -> None:
        """`url` is host:port of the server's gRPC service, or http://host:port of its HTTP service.

        HTTP is for where gRPC does not get through: files grow by a third, speech is rounded to 16 bits, and an
        orchestrator that died is noticed by a request's `timeout_ms` alone.

        With `shared_memory`, inputs of 1 MiB and more lie in memory that the server maps, instead of going through the
        connection: "system" is the host's (/dev/shm), "cuda" that of its first GPU. Only for gRPC, and for a server on
        this host, of this user or root; elsewhere requests raise `NotSupported`.

        Raises ValueError for another kind of memory, or with HTTP.
        """
        self.pipeline = pipeline
        memory = checked_kind(shared_memory, is_http(url))
        self._transport: Transport | HttpTransport = HttpTransport(url) if is_http(url) else Transport(url, memory)

    def __enter__(self) -> OmniClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; requests that still run are cancelled. Waits, for two seconds at most, until those that
        were left have ended."""
        self._transport.close()

    def is_ready(self) -> bool:
        """Whether the server answers and the pipeline is loaded."""
        return self._transport.is_ready(self.pipeline)

    def pipelines(self) -> list[str]:
        """The names of the server's pipelines that are ready. Raises `ServerUnreachable`."""
        return self._transport.pipelines()

    def info(self) -> PipelineInfo:
        """The pipeline's modalities, voices, sample rate and context. Raises what `stream` does."""
        return described(self._transport.infer(self.pipeline, DESCRIBE))

    def trace(self, name: str = "") -> Trace:
        """What the server did when for a request that was traced and has ended, by the request's id or its W3C trace
        id; the newest without a name. The server keeps the last ones (64, unless its configuration says otherwise).
        Raises `NotFound`, and what `stream` does."""
        return told_trace(self._transport.infer(self.pipeline, trace_inputs(name)))

    def chat(self, text: str | None = None, **options: Unpack[RequestOptions]) -> Answer:
        """Ask, and wait for the whole answer. Takes and raises what `stream` does."""
        return Answer.collect(self._events(request_inputs(text, options, stream=False), time_limit(options)))

    def stream(self, text: str | None = None, **options: Unpack[RequestOptions]) -> Generator[Event, None, None]:
        """Ask, and get the answer's events as they come; the last is `Finished`.

        The request is sent when the first event is asked for. Leaving the iterator early (`break` in the loop, or its
        `close()`) cancels the request. The options are those of `RequestOptions`; `text` may be None where `messages`,
        `audio` or `audios` ask.

        Raises a kind of `RequestFailed` with the server's message, `ServerUnreachable`, `ConnectionLost`; also where
        the pipeline's orchestrator died, whose requests Triton never ends: `Unavailable` some seconds later, and
        `DeadlineExceeded` for a request with a `timeout_ms` that the server did not end in time. And at once
        TypeError for wrong options and OSError for unreadable files.
        """
        return self._events(request_inputs(text, options, stream=True), time_limit(options))

    def _events(self, inputs: Mapping[str, np.ndarray], limit: float | None) -> Generator[Event, None, None]:
        reader = EventReader()
        with closing(self._transport.infer(self.pipeline, inputs, limit)) as responses:
            for outputs in responses:
                yield from reader.read(outputs)
        yield reader.end(self._transport.url)
