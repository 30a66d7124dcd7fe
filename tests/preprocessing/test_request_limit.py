"""Files are decoded while their request is wanted, and for no longer than all of them together may take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from omni_python.preprocessing.audio import decode_audio
from omni_python.preprocessing.image import decode_image
from omni_python.preprocessing.request_limit import request_limit
from omni_python.preprocessing.video import decode_video, probe_video
from omni_python.proto.errors import Cancelled, InvalidArgument
from tests.oracle.cases import MEDIA

LONG = 600.0
FILES: list[tuple[Callable[[bytes], Any], str]] = [
    (decode_image, "portrait.png"),
    (decode_audio, "voice_16k.wav"),
    (decode_video, "talking.mp4"),
    (probe_video, "talking.mp4"),
]
every_kind = pytest.mark.parametrize(("decode", "name"), FILES, ids=[decode.__name__ for decode, _ in FILES])


@every_kind
def test_nothing_is_decoded_for_a_request_that_is_over(decode: Callable[[bytes], Any], name: str) -> None:
    data = (MEDIA / name).read_bytes()
    with request_limit(LONG, lambda: True), pytest.raises(Cancelled):
        decode(data)
    with request_limit(LONG, lambda: False):
        decode(data)


@every_kind
def test_a_file_is_left_where_its_request_ends(decode: Callable[[bytes], Any], name: str) -> None:
    """It was still wanted when the file was begun with."""
    answers = iter([False])
    with request_limit(LONG, lambda: next(answers, True)), pytest.raises(Cancelled):
        decode((MEDIA / name).read_bytes())


@every_kind
def test_files_have_their_time_together(decode: Callable[[bytes], Any], name: str) -> None:
    data = (MEDIA / name).read_bytes()
    message = "decoding the request's files took longer than 1e-06 s together"
    with request_limit(1e-6, lambda: False), pytest.raises(InvalidArgument, match=message):
        for _ in range(1000):
            decode(data)
    decode(data)  # a later request of this thread has its own


def test_requests_on_other_threads_go_on() -> None:
    data = (MEDIA / "portrait.png").read_bytes()
    shapes = []
    with request_limit(LONG, lambda: True):
        other = threading.Thread(target=lambda: shapes.append(decode_image(data).shape))
        other.start()
        other.join()
    assert len(shapes) == 1
