"""What crosses the edges of the no-op pipelines."""

from __future__ import annotations

import msgspec
import numpy as np

from omni_python.proto.errors import InvalidArgument
from omni_python.proto.payload import Payload
from omni_python.proto.request import OmniRequest


class NoopParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may ask of a no-op pipeline, as `sampling_parameters`.

    `nbytes` of data go through the line, or `chunks` chunks of `chunk_bytes` over the streaming edge. `delay` is the
    seconds of work in stage `delay_stage`; `fail_stage` names a stage that fails. `timed` asks the line how long its
    data took from the first stage to the last, `tell_makers` the streaming pipelines which of their replicas made
    what: each chunk's text is then "<source>><sink> ".
    """

    nbytes: int = 0
    chunks: int = 0
    chunk_bytes: int = 0
    delay: float = 0.0
    delay_stage: str = "b"
    fail_stage: str = ""
    timed: bool = False
    tell_makers: bool = False

    @classmethod
    def of(cls, request: OmniRequest) -> NoopParams:
        try:
            return msgspec.convert(request.sampling, cls)
        except msgspec.ValidationError as error:
            valid = ", ".join(cls.__struct_fields__)
            raise InvalidArgument(f"sampling_parameters: {error}; valid keys: {valid}") from None


class Block(Payload):
    """Some bytes, uint8 [nbytes], on their way through. `sent` is the system's monotonic clock in seconds, `maker` the
    scheduler that made them."""

    params: NoopParams
    data: np.ndarray
    sent: float = 0.0
    maker: str = ""
