"""Opening an audio or video file that a client sent."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import av
import numpy as np
from av.container import InputContainer

from omni_python.preprocessing.request_limit import check_request
from omni_python.proto.errors import InvalidArgument

Encoded = bytes | np.ndarray
"""A file's content: bytes, or uint8 [n]."""

AUDIO_FORMATS = "wav, mp3, flac, ogg, opus, m4a, aac, aiff, webm"
VIDEO_FORMATS = "mp4, mov, webm, mkv, avi"

DECODE_SECONDS = 60.0
"""For one file; a valid one within the other limits takes far less."""

_MAX_PROBED_PIXELS = 64_000_000
"""Of a frame that FFmpeg decodes to find out what a file holds, before anything else can be checked."""
_MAX_STREAMS = 64

# Playlists (hls, concat, ...) name other files and addresses, so nothing but plain containers is ever probed.
_DEMUXERS = "wav,w64,aiff,mp3,flac,ogg,aac,caf,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts"


# A movie's header in compressed form: FFmpeg unpacks a megabyte of it to a gigabyte, whatever a file may need.
_PACKED_HEADER = re.compile(rb"cmov(.{8})?.{4}dcom", re.DOTALL)


class TimeLimit:
    """Ends what decodes one file after `seconds`: small files may ask for hours of work. And with its request, see
    `request_limit`; then it does not even begin."""

    def __init__(self, seconds: float = DECODE_SECONDS) -> None:
        check_request()
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise `InvalidArgument` where the time is over, `Cancelled` where the request is."""
        check_request()
        if time.monotonic() > self._end:
            raise InvalidArgument(f"decoding the file took longer than {self._seconds:g} s, the most that is accepted")


class _TimedFile(io.BytesIO):
    def __init__(self, content: bytes, limit: TimeLimit) -> None:
        super().__init__(content)
        self._limit = limit

    def read(self, size: int | None = -1, /) -> bytes:
        self._limit.check()
        return super().read(size)


def as_file(data: Encoded, limit: TimeLimit) -> io.BytesIO:
    """The content as an open file that nobody can read after `limit`."""
    return _TimedFile(data if isinstance(data, bytes) else data.tobytes(), limit)


@contextmanager
def open_media(data: Encoded, kind: str, accepted: str, limit: TimeLimit) -> Iterator[InputContainer]:
    """The container in `data`; what FFmpeg cannot read, then or while it is used, raises `InvalidArgument`.

    `kind` ("audio", "video") and `accepted` only word the error. Reading ends with `limit`; loops over what is decoded
    have to check it too.
    """
    if len(data) == 0:
        raise InvalidArgument(f"empty {kind} file; accepted formats: {accepted}")
    if _PACKED_HEADER.search(data):  # type: ignore[arg-type]  # an array is a buffer, which numpy does not tell
        raise InvalidArgument(f"{kind} file with a compressed header, which is not unpacked; accepted: {accepted}")
    options = {
        "format_whitelist": _DEMUXERS,
        "protocol_whitelist": "pipe",
        "max_pixels": str(_MAX_PROBED_PIXELS),
        "max_streams": str(_MAX_STREAMS),
    }
    try:
        with av.open(as_file(data, limit), options=options, metadata_errors="replace") as container:
            yield cast(InputContainer, container)
    except av.FFmpegError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidArgument(f"unreadable {kind} file ({reason}); accepted formats: {accepted}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"unreadable {kind} file ({error.reason}); accepted formats: {accepted}") from error
