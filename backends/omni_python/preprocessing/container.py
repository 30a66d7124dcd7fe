"""Opening an audio or video file that a client sent."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import av
import numpy as np
from av.container import InputContainer

from omni_python.proto.errors import InvalidArgument

Encoded = bytes | np.ndarray
"""A file's content: bytes, or uint8 [n]."""

AUDIO_FORMATS = "wav, mp3, flac, ogg, opus, m4a, aac, aiff, webm"
VIDEO_FORMATS = "mp4, mov, webm, mkv, avi"

# Playlists (hls, concat, ...) name other files and addresses, so nothing but plain containers is ever probed.
_DEMUXERS = "wav,w64,aiff,mp3,flac,ogg,aac,caf,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts"


def as_file(data: Encoded) -> io.BytesIO:
    """The content as an open file."""
    return io.BytesIO(data if isinstance(data, bytes) else data.tobytes())


@contextmanager
def open_media(data: Encoded, kind: str, accepted: str) -> Iterator[InputContainer]:
    """The container in `data`; what FFmpeg cannot read, then or while it is used, raises `InvalidArgument`.

    `kind` ("audio", "video") and `accepted` only word the error.
    """
    if len(data) == 0:
        raise InvalidArgument(f"empty {kind} file; accepted formats: {accepted}")
    options = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "pipe"}
    try:
        with av.open(as_file(data), options=options) as container:
            yield cast(InputContainer, container)
    except av.FFmpegError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidArgument(f"unreadable {kind} file ({reason}); accepted formats: {accepted}") from error
