"""From payloads of terminal stages to Triton responses."""

from __future__ import annotations

import base64
import threading
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils

from omni_python.glue.last_response import send_last, send_last_error
from omni_python.glue.late_calls import LateCalls
from omni_python.glue.request import ParsedRequest
from omni_python.glue.server_features import TAKES_RESPONSE_PARAMETERS
from omni_python.proto.errors import ErrorCode, OmniError, Unavailable
from omni_python.proto.info import PipelineInfo, encode_info
from omni_python.proto.payload import AudioOutput, Payload, TextOutput
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import Trace, encode_trace
from omni_python.proto.wav import pcm16, wav_file

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_json = msgspec.json.Encoder().encode
_late_ends = LateCalls()

LEAVE = 2.0
"""Seconds from the end of a request whose client has left until Triton is told, which nobody waits for. The gRPC front
of 24.10 crashes the server where it is told while it still takes leave of the client itself, which takes a moment:
`scripts/soak` saw that within a thousand cancelled requests when its clients still broke their calls off, and where a
server that has just started shares two cores with another, 0.2 seconds were too few within a few hundred."""

_CODES = {
    ErrorCode.INTERNAL: pb_utils.TritonError.INTERNAL,
    ErrorCode.NOT_FOUND: pb_utils.TritonError.NOT_FOUND,
    ErrorCode.INVALID_ARGUMENT: pb_utils.TritonError.INVALID_ARG,
    ErrorCode.UNAVAILABLE: pb_utils.TritonError.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: pb_utils.TritonError.UNSUPPORTED,
    ErrorCode.CANCELLED: pb_utils.TritonError.CANCELLED,
    ErrorCode.DEADLINE_EXCEEDED: pb_utils.TritonError.UNAVAILABLE,  # Triton has no code of its own for it
}


def send_error(sender: Any, error: OmniError, no_room: bool = False) -> None:
    """End a request with an error. `no_room`: see `send_last_error`.

    Its message begins with the code's name, since gRPC streams carry no codes: asked for them (`triton_grpc_error`),
    Triton 24.10 crashes after some hundreds of errors. Where the client has left, the end comes after `LEAVE` seconds.
    """
    triton_error = pb_utils.TritonError(f"{error.code.name}: {error.shown}", _CODES[error.code])
    response = pb_utils.InferenceResponse(error=triton_error)
    if error.code is ErrorCode.CANCELLED and sender.is_cancelled():
        _late_ends.add(LEAVE, send_last_error, sender, response, no_room)
    else:
        send_last_error(sender, response, no_room)


def send_nothing(sender: Any) -> None:
    """The one response, without content, to what was done."""
    sender.send(pb_utils.InferenceResponse([]), flags=_FINAL)


def send_description(sender: Any, info: PipelineInfo) -> None:
    """The one response to a request for the pipeline's description."""
    sender.send(pb_utils.InferenceResponse([_bytes("description", encode_info(info))]), flags=_FINAL)


def send_trace(sender: Any, trace: Trace) -> None:
    """The one response to a request for the trace of another."""
    data = encode_trace(trace)
    send_last(sender, pb_utils.InferenceResponse([_bytes("trace", data)]), len(data))


def send_uptime(sender: Any, seconds: float) -> None:
    """The one response to a client that wonders whether its request's orchestrator still lives."""
    tensor = pb_utils.Tensor("uptime_ms", np.array([seconds * 1000], np.int64))
    sender.send(pb_utils.InferenceResponse([tensor]), flags=_FINAL)


class TritonSink:
    """One request's way back to its client.

    Streaming: a response for every chunk, and a last one with finish reason and usage. Otherwise one response with
    everything, which is what HTTP's `generate` needs. A streamed answer that fails in part has both a last one, whose
    finish reason is "error" and whose usage tells the reason of each part, and an error.
    """

    def __init__(
        self, sender: Any, parsed: ParsedRequest, wanted: Collection[str], recordings: Sequence[str] = ()
    ) -> None:
        """`wanted` are the outputs that the client has requested, all where it names none: Triton sends no others.
        `recordings` are the files that the client is told of: at first where it streams, since the request may fail,
        else with all the rest."""
        self._sender = sender
        self._wanted = wanted
        self._recordings = [_bytes("recordings", _json(recordings))] if recordings else []
        self._ending_lock = threading.Lock()
        self._ended = False
        self._lost: OmniError | None = None  # why a response could not be sent: the answer has a hole
        self._stream = parsed.request.stream
        self._audio_format = parsed.audio_format
        self._text: list[str] = []
        self._audio: list[np.ndarray] = []
        self._sample_rate = 0
        self._text_end: TextOutput | None = None
        self._audio_end: AudioOutput | None = None
        self._samples = 0
        self._trace_id = ""

    def announce(self) -> None:
        """A response without content. Triton notices a client that leaves (HTTP) only once one was sent."""
        self._sender.send(pb_utils.InferenceResponse(self._recordings))

    def is_cancelled(self) -> bool:
        """Whether the client has left. Never asks Triton once the last response is on its way: that crashes the whole
        server (seen with 24.10, in TRITONBACKEND_ResponseFactoryIsCancelled). Never waits either."""
        if not self._ending_lock.acquire(blocking=False):
            return False
        try:
            return not self._ended and bool(self._sender.is_cancelled())
        finally:
            self._ending_lock.release()

    def traced(self, trace_id: str) -> None:
        self._trace_id = trace_id

    def chunk(self, payload: Payload) -> None:
        """Raises what Triton raises where it cannot take the response (its shared memory may be full); the request then
        ends with an error instead of an answer with a hole."""
        if self._lost is not None:
            return
        try:
            self._take(payload)
        except Exception as error:
            self._lost = Unavailable(f"a response could not be sent: {error}")
            raise

    def _take(self, payload: Payload) -> None:
        if type(payload) is AudioOutput:  # isinstance asks the payloads' metaclass, and takes several times as long
            self._sample_rate = payload.sample_rate
            self._samples += len(payload.samples)
        if not self._stream:
            self._collect(payload)
        elif tensors := self._content(payload):
            self._sender.send(pb_utils.InferenceResponse(tensors))

    def result(self, stage: str, payload: Payload) -> None:
        if type(payload) is TextOutput:
            self._text_end = payload
        elif type(payload) is AudioOutput:
            self._audio_end = payload
        self.chunk(payload)

    def finish(self, timings: Sequence[StageTiming], trace: Trace | None = None) -> None:
        if self._lost is not None:
            self.fail(self._lost)
            return
        try:
            self._send_end(timings, trace)
        except Exception as error:  # an error is small, and may still get through
            with self._ending_lock:
                self._ended = True
                send_error(self._sender, Unavailable(f"the answer could not be sent: {error}"), no_room=True)
            raise

    def _send_end(self, timings: Sequence[StageTiming], trace: Trace | None) -> None:
        tensors: list[pb_utils.Tensor] = []
        if "stage_timings" in self._wanted:
            tensors.append(_bytes("stage_timings", _json([_rounded(timing) for timing in timings])))
        if trace is not None:
            tensors.append(_bytes("trace", encode_trace(trace)))
        if not self._stream:
            tensors += self._recordings
            if self._text_end is not None:
                tensors += self._content(TextOutput("".join(self._text)), even_if_empty=True)
            if self._audio_end is not None:
                samples = np.concatenate([*self._audio, np.empty(0, np.float32)])
                tensors += self._content(AudioOutput(samples, self._sample_rate), even_if_empty=True)
        response = self._last_response(tensors + self._ending())
        nbytes = 0 if self._stream else sum(map(len, self._text)) + self._samples * np.dtype(np.float32).itemsize
        with self._ending_lock:
            self._ended = True
            send_last(self._sender, response, nbytes)

    def fail(self, error: OmniError) -> None:
        """What was streamed stays valid: where part of the answer is complete, a response before the error says so."""
        with self._ending_lock:
            self._ended = True
            try:
                if self._stream and (self._text_end is not None or self._audio_end is not None):
                    self._sender.send(self._last_response(self._ending(failed=True), failed=True))
            except Exception as lost:
                self._lost = self._lost or Unavailable(f"a response could not be sent: {lost}")
                raise
            finally:
                send_error(self._sender, error, no_room=self._lost is not None)

    def _collect(self, payload: Payload) -> None:
        if type(payload) is TextOutput:
            self._text.append(payload.text)
        elif type(payload) is AudioOutput:
            self._audio.append(payload.samples)

    def _content(self, payload: Payload, even_if_empty: bool = False) -> list[pb_utils.Tensor]:
        if type(payload) is TextOutput and (payload.text or even_if_empty):
            return [_bytes("text_output", payload.text)]
        if type(payload) is AudioOutput and (len(payload.samples) or even_if_empty):
            rate = pb_utils.Tensor("audio_sample_rate", np.array([payload.sample_rate], np.int32))
            if self._audio_format == "fp32":
                return [pb_utils.Tensor("audio_output", np.ascontiguousarray(payload.samples, np.float32)), rate]
            is_wav = self._audio_format == "wav"
            data = wav_file(payload.samples, payload.sample_rate) if is_wav else pcm16(payload.samples)
            return [_bytes("audio_base64", base64.b64encode(data)), rate]
        return []

    def _last_response(self, tensors: list[pb_utils.Tensor], failed: bool = False) -> pb_utils.InferenceResponse:
        """Where this server takes them, with parameters: what gateways and logs on the way want to know of an answer,
        without reading tensors, whatever outputs its client has asked for. Those that are outputs, too, have the same
        names and values, since HTTP's `generate` puts both into one object."""
        if not TAKES_RESPONSE_PARAMETERS:
            return pb_utils.InferenceResponse(tensors)
        parameters: dict[str, str | int] = {
            "finish_reason": self._finish_reason(failed),
            "usage": _json(self._usage(failed)).decode(),
        }
        if self._text_end is not None:
            parameters["num_input_tokens"] = self._text_end.num_input_tokens
            parameters["num_output_tokens"] = self._text_end.num_output_tokens
        if self._trace_id:
            parameters["trace_id"] = self._trace_id
        return pb_utils.InferenceResponse(tensors, parameters=parameters)

    def _finish_reason(self, failed: bool) -> str:
        text, audio = self._text_end, self._audio_end
        return "error" if failed else (text and text.finish_reason) or (audio and audio.finish_reason) or "stop"

    def _ending(self, failed: bool = False) -> list[pb_utils.Tensor]:
        text = self._text_end
        tensors = []
        if "finish_reason" in self._wanted:
            tensors.append(_bytes("finish_reason", self._finish_reason(failed)))
        if text is not None:
            for name, count in (
                ("num_input_tokens", text.num_input_tokens),
                ("num_output_tokens", text.num_output_tokens),
            ):
                if name in self._wanted:
                    tensors.append(pb_utils.Tensor(name, np.array([count], np.uint32)))
        if "usage" in self._wanted:
            tensors.append(_bytes("usage", _json(self._usage(failed))))
        return tensors

    def _usage(self, failed: bool) -> dict[str, Any]:
        text, audio = self._text_end, self._audio_end
        usage: dict[str, Any] = {}
        if text is not None:
            usage |= {"input_tokens": text.num_input_tokens, "output_tokens": text.num_output_tokens}
        if audio is not None:
            usage["audio_frames"] = audio.num_frames
            usage["audio_samples"] = self._samples
            usage["audio_seconds"] = round(self._samples / self._sample_rate, 3) if self._sample_rate else 0.0
            usage["audio_finish_reason"] = audio.finish_reason or "stop"
        if failed:
            usage["text_finish_reason"] = "error" if text is None else text.finish_reason or "stop"
            usage.setdefault("audio_finish_reason", "error")
        return usage


def _rounded(timing: StageTiming) -> dict[str, str | float]:
    """In seconds, to the microsecond."""
    return {
        "stage": timing.stage,
        "start": round(timing.start * 1e6) / 1e6,
        "first": round(timing.first * 1e6) / 1e6,
        "end": round(timing.end * 1e6) / 1e6,
    }


def _bytes(name: str, value: str | bytes) -> pb_utils.Tensor:
    data = value.encode() if isinstance(value, str) else value
    return pb_utils.Tensor(name, np.array([data], dtype=np.object_))
