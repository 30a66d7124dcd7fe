"""Recording: who may ask for it, and the taps that write what passes at a stage to files.

Files hold what users sent, so a server records only where its operator names a folder for them.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from omni_python import __version__
from omni_python.pipeline.recording.file import RecordingWriter, Track
from omni_python.pipeline.recording.taps import InputKind, Tap, with_seeds
from omni_python.proto.errors import InvalidArgument, OmniError, Unavailable, Unsupported
from omni_python.proto.messages import RecordOrder, WireError
from omni_python.proto.payload import Payload
from omni_python.proto.recording import RECORD_DIRECTORY, SUFFIX, Header, Input, Output, RecordedPayload
from omni_python.proto.work import OutgoingMessage

MAX_FOLDER = 16 << 30
"""Bytes of recordings in a folder, beyond which none is begun."""

log = logging.getLogger(__name__)


def record_directory() -> Path | None:
    """The folder for recordings; None where none are made."""
    folder = os.environ.get(RECORD_DIRECTORY, "")
    return Path(folder) if folder else None


def recording_path(directory: Path, name: str, stage: str) -> Path:
    """Where the recording `name` of a stage lies."""
    return directory / f"{name}.{stage}{SUFFIX}"


def new_order(
    directory: Path | None, wanted: Collection[str], stages: Collection[str], unused: Collection[str], sampling: str
) -> RecordOrder:
    """What a request that asks for recordings of the stages `wanted` takes along. `stages` are all of the pipeline,
    `unused` those that the request does not need.

    Raises `Unsupported` where the server does not record, `InvalidArgument` for stages that are not there or not used,
    `Unavailable` where the folder is full or not to be read.
    """
    if directory is None:
        raise Unsupported("record: this server does not record; its operator can start it with `--record-dir`")
    for stage in wanted:
        if stage not in stages:
            raise InvalidArgument(f"record: there is no stage {stage!r}; the stages are {', '.join(stages)}")
        if stage in unused:
            raise InvalidArgument(f"record: stage {stage} does not work on this request")
    try:
        held = sum(entry.stat().st_size for entry in os.scandir(directory))
    except OSError as error:
        raise Unavailable(f"record: the server's folder for recordings cannot be read: {error.strerror}") from None
    if held > MAX_FOLDER:
        raise Unavailable(f"record: the server's recordings have {held >> 30} GiB; remove some from its folder")
    now = datetime.now(UTC)
    return RecordOrder(f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}", tuple(wanted), sampling)


class TappedStage(Protocol):
    """What a recorder needs of a stage."""

    taps: dict[str, Tap]

    def is_over(self, request_id: str) -> bool: ...


class Recorder:
    """Those recordings of one process that are under way. Thread-safe."""

    def __init__(self, directory: Path, pipeline: str, process: str, stages: Mapping[str, TappedStage]) -> None:
        self._directory = directory
        self._pipeline = pipeline
        self._model = f"{pipeline}_{process}"
        self._stages = stages
        self._writer = RecordingWriter()
        self._orders: dict[str, RecordOrder] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._orders)

    def close(self) -> None:
        """Wait until what was recorded is written."""
        self._writer.close()

    def order(self, request_id: str) -> RecordOrder | None:
        """What the request takes along on its way; None for those that are not recorded."""
        return self._orders.get(request_id)

    def arriving(self, request_id: str, order: RecordOrder) -> None:
        """Before an input of a request is handed to a stage of this process."""
        with self._lock:
            if request_id in self._orders:
                return
            self._orders[request_id] = order
        for name in order.stages:
            stage = self._stages.get(name)
            if stage is not None and not stage.is_over(request_id):
                stage.taps[request_id] = self._tap(request_id, name, order)

    def over(self, request_id: str) -> None:
        """No stage of this process works on the request any more (it may come back to another one)."""
        if request_id not in self._orders:
            return
        with self._lock:
            self._orders.pop(request_id, None)
        for stage in self._stages.values():
            if (tap := stage.taps.pop(request_id, None)) is not None:
                tap.end()

    def _tap(self, request_id: str, stage: str, order: RecordOrder) -> RecordingTap:
        header = Header(
            self._pipeline,
            stage,
            self._model,
            request_id,
            order.sampling,
            datetime.now(UTC).isoformat(timespec="seconds"),
            __version__,
        )
        return RecordingTap(self._writer.begin(recording_path(self._directory, order.name, stage), header))


class RecordingTap(Tap):
    """Writes down what passes. Sampling without a seed is given one, which changes nothing but that it can be done
    again. A recording that fails is given up, and the request goes on."""

    def __init__(self, track: Track) -> None:
        self._track = track
        self._seed = secrets.randbits(62)

    def take(self, kind: InputKind, source: str, payload: Payload | None) -> Payload | None:
        if payload is None:
            self._track.write(Input(kind, source))
            return None
        payload = with_seeds(payload, self._seed)
        if (recorded := self._recorded(payload)) is not None:
            self._track.write(Input(kind, source, recorded))
        return payload

    def give(self, message: OutgoingMessage) -> bool:
        match message.type:
            case "error":
                self._track.write(Output("error", error=WireError.of(message.data)))
            case kind:
                if (recorded := self._recorded(message.data)) is not None:
                    self._track.write(Output(kind, message.target or "", recorded))
        return False

    def end(self) -> None:
        self._track.end()

    def _recorded(self, payload: Payload) -> RecordedPayload | None:
        try:
            return RecordedPayload.of(payload)
        except OmniError as error:
            self._track.give_up(str(error))
            return None
