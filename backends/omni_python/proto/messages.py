"""The control plane's messages. Small, typed, and each with the epoch of its sender.

An epoch is a random number drawn once by each process: it tells a restarted process from its predecessor.
Fields are encoded by position: append only, with defaults.
"""

from __future__ import annotations

import math
import secrets
from typing import Annotated

import msgspec

from omni_python.proto.errors import OmniError
from omni_python.proto.refs import DeviceRef, Ref
from omni_python.proto.timing import StageTiming
from omni_python.proto.trace import StageRecord

Route = tuple[int, ...]
"""The processes that work on a request, by their epochs: one replica of each that it needs, kept to its end."""


class Envelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An encoded payload. Its tensors on the host are `inline`, or in the slot `ref`; those on a GPU in `device`."""

    type: str
    body: bytes
    inline: bytes = b""
    ref: Ref | None = None
    device: DeviceRef | None = None

    @property
    def refs(self) -> tuple[Ref, ...]:
        if self.ref is None:
            return () if self.device is None else (self.device,)
        return (self.ref,) if self.device is None else (self.ref, self.device)


class RelayInfo(msgspec.Struct, array_like=True, frozen=True):
    """What a peer has to know to reach a process by one relay; `data` is the backend's own."""

    relay: str
    data: bytes = b""


class Site(msgspec.Struct, array_like=True, frozen=True):
    """Where a process is: its host, its GPU's UUID ("" for none), and the relays that it reads and writes. In a
    pipeline on several hosts also the host's `name` and the `address` at which other hosts reach it; "" on one."""

    host: str = ""
    gpu: str = ""
    relays: tuple[RelayInfo, ...] = ()
    name: str = ""
    address: str = ""


class WireError(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An error on its way to the client."""

    code: int
    message: str

    @classmethod
    def of(cls, error: BaseException) -> WireError:
        """Any exception, as `OmniError.of` shows it."""
        shown = OmniError.of(error)
        return cls(int(shown.code), shown.shown)

    def exception(self) -> OmniError:
        return OmniError.from_code(self.code, self.message)


class RecordOrder(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Goes along with a request some of whose `stages` are to be recorded, each in a file whose name begins with
    `name`. `sampling` are the client's parameters, as JSON."""

    name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9-]{1,64}\Z")]
    stages: Annotated[tuple[str, ...], msgspec.Meta(max_length=64)]
    sampling: str = "{}"


class _Message(msgspec.Struct, array_like=True, frozen=True, tag=True, gc=False):
    epoch: int


class SubmitMessage(_Message, frozen=True):
    """Coordinator to the entry stage: start this request, which has `remaining` seconds left."""

    request_id: str
    stage: str
    payload: Envelope
    remaining: float = math.inf
    route: Route = ()
    record: RecordOrder | None = None
    traced: bool = False


class DataReadyMessage(_Message, frozen=True):
    """Stage to stage: a payload, a stream chunk (`chunk_id` >= 0, counted per edge and request), or the end of the
    stream (`is_done`, no payload; `chunk_id` is then the number of chunks sent). The request has `remaining` seconds
    left: a duration, since hosts do not share a clock. `timings`, relative to the sending, come with results."""

    request_id: str
    source: str
    target: str
    payload: Envelope | None = None
    chunk_id: int = -1
    is_done: bool = False
    remaining: float = math.inf
    route: Route = ()
    timings: tuple[StageTiming, ...] = ()
    record: RecordOrder | None = None
    traced: bool = False


class StreamMessage(_Message, frozen=True):
    """Terminal stage to coordinator: one chunk for the client."""

    request_id: str
    source: str
    payload: Envelope


class CompleteMessage(_Message, frozen=True):
    """Stage to coordinator: a terminal stage's result, or any stage's failure. `timings`, relative to the sending, are
    those of all stages that a result comes from."""

    request_id: str
    source: str
    payload: Envelope | None = None
    error: WireError | None = None
    timings: tuple[StageTiming, ...] = ()


class TraceMessage(_Message, frozen=True):
    """Stage process to coordinator: its stages' part of a traced request that it is done with; several of them where
    the request comes back to the process. In seconds of its host's monotonic clock."""

    request_id: str
    process: str
    replica: int
    host: str
    stages: tuple[StageRecord, ...]


class AbortMessage(_Message, frozen=True):
    """Coordinator to every stage process: drop this request, in `stages` alone where there are any. Repeating it does
    no harm."""

    request_id: str
    stages: tuple[str, ...] = ()


class CreditMessage(_Message, frozen=True):
    """Receiver to sender of payloads: it is done with these uses (generations) of slots of one relay."""

    relay: str
    generations: list[int]


class RegisterMessage(_Message, frozen=True):
    """Stage process to coordinator, once a second: here I am. `view` is the newest `PeersMessage` it has seen."""

    process: str
    stages: list[str]
    pid: int
    address: str
    view: tuple[int, int]
    site: Site = Site()
    replica: int = 0


class LeaveMessage(_Message, frozen=True):
    """Stage process to coordinator: my model is being unloaded. The coordinator sends it nothing new, and a
    `GoodbyeMessage` once nothing that it needs to compute is left."""


class DrainMessage(_Message, frozen=True):
    """Supervisor to coordinator: admit nothing more; the server is to be stopped. `end`: its time is over, so that
    requests in flight fail now."""

    end: bool = False


class BrokenMessage(_Message, frozen=True):
    """Stage process to coordinator: this process cannot go on, and is to be ended and brought back."""

    reason: str


class GoneMessage(_Message, frozen=True):
    """A host's keeper to the coordinator: the process with the epoch `gone` (0 for none) is dead, for this reason; it
    is being started again, unless it is gone `for_good`."""

    process: str
    replica: int
    gone: int
    reason: str
    for_good: bool = False


class BrokenLinkMessage(_Message, frozen=True):
    """Stage process to coordinator: its connection with the process `to`, on another host, has broken."""

    to: int


class ProfileMessage(_Message, frozen=True):
    """`omni profile` to the coordinator, which passes it on to the processes of `stages`: profile yourselves for
    `seconds`, and write a Chrome trace into `directory`. Answers go to the socket `reply_to`."""

    id: str
    stages: tuple[str, ...]
    seconds: float
    directory: str
    reply_to: str


class StopProfileMessage(_Message, frozen=True):
    """`omni profile` to the coordinator, which passes it on to all processes: the profile `id` ends now."""

    id: str


class ProfileReply(_Message, frozen=True):
    """To whoever asked for a profile. First from the coordinator (`source` ""): the `processes` that it has told. Then
    from each of them: it has begun, at last the `path` that it has written; or in place of either its error."""

    id: str
    source: str
    processes: tuple[str, ...] = ()
    path: str = ""
    error: WireError | None = None


class GoodbyeMessage(_Message, frozen=True):
    """Coordinator to a stage process that leaves: nobody needs you any more."""


class Peer(msgspec.Struct, array_like=True, frozen=True):
    """A stage process that the coordinator knows. `joined` is the version of the view with which it came, or came back
    after it was cut off."""

    process: str
    stages: list[str]
    epoch: int
    pid: int
    address: str
    site: Site = Site()
    replica: int = 0
    joined: int = 0


class PeersMessage(_Message, frozen=True):
    """Coordinator to every stage process: all processes of the pipeline, whenever that changes."""

    version: int
    pid: int
    address: str
    peers: list[Peer]
    site: Site = Site()


ControlMessage = (
    SubmitMessage
    | DataReadyMessage
    | StreamMessage
    | CompleteMessage
    | TraceMessage
    | AbortMessage
    | CreditMessage
    | RegisterMessage
    | LeaveMessage
    | BrokenMessage
    | GoneMessage
    | BrokenLinkMessage
    | DrainMessage
    | ProfileMessage
    | StopProfileMessage
    | ProfileReply
    | GoodbyeMessage
    | PeersMessage
)

encode_message = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ControlMessage).decode


def decode_message(frame: bytes) -> ControlMessage:
    """Thread-safe, as `encode_message` is. Raises `msgspec.MsgspecError` for anything that is no message."""
    try:
        return _decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:  # a tag that is no UTF-8; nests in fields to be skipped
        raise msgspec.DecodeError(str(error)) from None


def new_epoch() -> int:
    """A process's epoch: 62 random bits."""
    return secrets.randbits(62)
