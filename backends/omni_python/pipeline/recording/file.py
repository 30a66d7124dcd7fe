"""Writes recordings on a thread of its own, so that no stage waits for a disk."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from pathlib import Path
from typing import BinaryIO

from omni_python.proto.recording import DRAFT, MAGIC, MAX_BYTES, MAX_FRAMES, End, Header, Input, Output, encode_frame

MAX_PENDING = 512 << 20
"""Bytes that may wait for the disk in one process; recordings beyond are given up."""

log = logging.getLogger(__name__)


class RecordingWriter:
    """Thread-safe."""

    def __init__(self) -> None:
        self.pending = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Track, bytes | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="omni-record", daemon=True)
        self._thread.start()

    def begin(self, path: Path, header: Header) -> Track:
        """A new recording, of which nothing is on the disk before its first input."""
        return Track(self, path, header)

    def close(self) -> None:
        """Wait until everything is written."""
        self._queue.put(None)
        self._thread.join()

    def put(self, track: Track, data: bytes | None) -> bool:
        """Append `data` to the file, or end it (None). False where too much is waiting."""
        size = len(data or b"")
        with self._lock:
            if self.pending + size > MAX_PENDING:
                return False
            self.pending += size
        self._queue.put((track, data))
        return True

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            track, data = item
            try:
                track.save(data)
            except OSError as error:
                track.give_up(f"{track.path.name} cannot be written: {error.strerror}")
            with self._lock:
                self.pending -= len(data or b"")
            del item, track, data


class Track:
    """One recording. Thread-safe but for `save`, which the writing thread calls."""

    def __init__(self, writer: RecordingWriter, path: Path, header: Header) -> None:
        self.path = path
        self._writer = writer
        self._header = header
        self._lock = threading.Lock()
        self._size = 0
        self._frames = 0
        self._ended = False
        self._given_up = False
        self._file: BinaryIO | None = None

    def write(self, item: Input | Output) -> None:
        """Append an input or an output."""
        with self._lock:
            if self._ended:
                return
            data = encode_frame(item)
            if not self._size:
                data = MAGIC + encode_frame(self._header) + data
            self._size += len(data)
            self._frames += 1
            if self._size > MAX_BYTES - 1024 or self._frames > MAX_FRAMES:
                reason = f"it is larger than {MAX_BYTES >> 20} MiB, or has more than {MAX_FRAMES} payloads"
            elif not self._writer.put(self, data):
                reason = "more is recorded than the disk takes"
            else:
                return
        self.give_up(reason)

    def end(self) -> None:
        """The recording is complete; without an input there is none."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if not self._size:
                return
            if self._writer.put(self, encode_frame(End())):
                self._writer.put(self, None)
                return
        self.give_up("more is recorded than the disk takes")

    def give_up(self, reason: str) -> None:
        """Leave no file."""
        with self._lock:
            if self._given_up:
                return
            self._ended = self._given_up = True
        log.warning("the recording %s is given up: %s", self.path.name, reason)
        self._writer.put(self, None)

    def save(self, data: bytes | None) -> None:
        """Do what was put into the writer's queue."""
        draft = self.path.with_name(self.path.name + DRAFT)
        if data is not None and not self._given_up:
            if self._file is None:
                self._file = open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")  # noqa: SIM115
            self._file.write(data)
            self._file.flush()  # the process may be killed
        elif self._file is not None:
            self._file.close()
            self._file = None
            if self._given_up:
                with contextlib.suppress(OSError):
                    draft.unlink()
            else:
                draft.rename(self.path)
