"""Stands for a server's Python backend: the module `triton_python_backend_utils` as its stub fills it, and how the
server calls a model. Read in python_backend's sources, branches r24.10 and r26.07 (named at each part); no server newer
than 24.10 was at hand.
"""

from __future__ import annotations

import asyncio
import enum
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np

FINAL = 1
"""TRITONSERVER_RESPONSE_COMPLETE_FINAL."""

READY_TIMEOUT = 5.0
"""Seconds: kUserModelReadinessTimeoutMs."""


class TritonModelException(Exception):
    """What the stub makes of a PythonBackendException (`py::register_exception`, src/pb_stub.cc)."""


class ErrorCode(enum.IntEnum):
    """`TritonError.__ErrorCode` (src/pb_stub.cc)."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    """src/pb_stub.cc, `class_<PbError>`."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG = list(ErrorCode)[:4]
    UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = list(ErrorCode)[4:]

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code


class Tensor:
    """src/pb_stub.cc, `class_<PbTensor>`."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class OldResponse:
    """`InferenceResponse` of 24.10: no parameters, and a TypeError for them."""

    def __init__(self, output_tensors: Iterable[Tensor] = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Response(OldResponse):
    """`InferenceResponse` from 25.02 on (src/pb_stub.cc: `class_<InferResponse>`, `PyParametersToJSON`)."""

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        super().__init__(output_tensors, error)
        for name, value in (parameters or {}).items():
            if not isinstance(name, str) or not isinstance(value, bool | int | str):
                raise TritonModelException(f"Expect parameters values to have type bool/int/str, found {type(value)}")
        self._parameters = json.dumps(parameters or {})

    def parameters(self) -> str:
        return self._parameters


@dataclass
class Repository:
    """The server's models: their names to whether they are loaded. `refuses` is how those from core's change #502 on
    answer (src/tritonserver.cc, TRITONSERVER_ServerModelIsReady): GetModel's error for a model that is not loaded."""

    loaded: dict[str, bool]
    refuses: bool

    def load_model(self, model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        self.loaded[model_name] = True

    def unload_model(self, model_name: str, unload_dependents: bool = False) -> None:
        self.loaded[model_name] = False

    def is_model_ready(self, model_name: str, model_version: str = "") -> bool:
        if self.refuses and not self.loaded[model_name]:
            raise TritonModelException(f"Failed to check model readiness: '{model_name}' has no available versions")
        return self.loaded[model_name]


class Sender:
    """`InferenceResponseSender` (src/response_sender.cc): nothing after the final flag, only requested outputs
    (`InferResponse::PruneOutputTensors`)."""

    def __init__(self, requested: Iterable[str]) -> None:
        self.sent: list[OldResponse] = []
        self.ended = threading.Event()
        self.cancelled = False
        self._requested = set(requested)

    def send(self, response: OldResponse | None = None, flags: int = 0) -> None:
        if self.ended.is_set():
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if response is not None:
            response._tensors = [tensor for tensor in response._tensors if tensor.name() in self._requested]
            self.sent.append(response)
        if flags & FINAL:
            self.ended.set()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def wait(self, timeout: float = 10.0) -> list[OldResponse]:
        """All responses, once the last one is there."""
        assert self.ended.wait(timeout)
        return self.sent


class Request:
    """`InferenceRequest` as `execute` gets it."""

    def __init__(self, requested: Iterable[str], **inputs: np.ndarray) -> None:
        self.sender = Sender(requested)
        self._requested = list(requested)
        self._inputs = [Tensor(name, array) for name, array in inputs.items()]

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def parameters(self) -> str:
        return "{}"

    def requested_output_names(self) -> list[str]:
        return self._requested

    def get_response_sender(self) -> Sender:
        return self.sender


class Model(Protocol):
    def execute(self, requests: list[Any]) -> Any: ...
    def finalize(self) -> None: ...


class Instance:
    """One instance of a loaded model, as the server asks it for its readiness: one call at a time, by a thread that is
    not the one of `execute` (`ModelInstanceState::RunUserModelReadinessCheck` in src/python_be.cc,
    `Stub::ProcessUserModelReadinessRequest` in src/pb_stub.cc). Servers below 26.03 never call the model."""

    def __init__(self, model: Model, calls_is_ready: bool) -> None:
        self.calls = 0
        self._model = model
        self._has_hook = calls_is_ready and hasattr(model, "is_ready")  # looked up once: Stub::Initialize
        self._lock = threading.Lock()

    def not_ready(self) -> str:
        """Triton's words for why it is not; "" where it is."""
        if not self._has_hook:
            return ""
        answers: list[str] = []
        with self._lock:
            asker = threading.Thread(target=lambda: answers.append(self._ask()), daemon=True)
            asker.start()
            asker.join(READY_TIMEOUT)
        return answers[0] if answers else "Timed out waiting for user-defined is_ready() response"

    def _ask(self) -> str:
        self.calls += 1
        try:
            result = self._model.is_ready()  # type: ignore[attr-defined]
            if asyncio.iscoroutine(result):
                result = asyncio.run(result)
        except Exception as error:
            return str(error)
        if not isinstance(result, bool):
            return "is_ready() must return a boolean value"
        return "" if result else "is not ready (user-defined check failed)."


@dataclass(frozen=True)
class Server:
    """What differs between the releases."""

    has_response_parameters: bool
    calls_is_ready: bool
    refuses_unloaded: bool

    def module(self, loaded: Iterable[str] = ()) -> ModuleType:
        """A fresh `triton_python_backend_utils`, whose server has these models."""
        module: Any = ModuleType("triton_python_backend_utils")
        module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
        module.TritonModelException = TritonModelException
        module.TritonError = TritonError
        module.Tensor = Tensor
        module.InferenceResponse = Response if self.has_response_parameters else OldResponse
        module.repository = repository = Repository(dict.fromkeys(loaded, True), self.refuses_unloaded)
        module.load_model = repository.load_model
        module.unload_model = repository.unload_model
        module.is_model_ready = repository.is_model_ready
        module.MetricFamily = object  # named in annotations alone where metrics are off
        module.get_input_tensor_by_name = lambda request, name: next(
            (tensor for tensor in request.inputs() if tensor.name() == name), None
        )
        return module

    def instance(self, model: Model) -> Instance:
        return Instance(model, self.calls_is_ready)


OLD = Server(has_response_parameters=False, calls_is_ready=False, refuses_unloaded=False)
"""24.10."""

NEW = Server(has_response_parameters=True, calls_is_ready=True, refuses_unloaded=True)
"""26.07."""
