"""What the client makes of its arguments: the request parser of the server reads it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.client import OmniClient, RequestOptions
from omni_python.client._inputs import request_inputs
from omni_python.glue.request import parse_request
from omni_python.proto.request import AudioPart, ImagePart, TextPart, VideoPart


def test_server_reads_what_was_asked(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    sound, photo, film = (rng.bytes(n) for n in (50, 60, 70))
    (tmp_path / "film").write_bytes(film)
    samples = rng.uniform(-1, 1, 99)
    options: RequestOptions = {
        "audios": [sound],
        "images": [photo, photo[:9]],
        "videos": [tmp_path / "film", str(tmp_path / "film")],
        "audio": samples,
        "audio_sample_rate": 8000,
        "modalities": ["text"],
        "voice": "ünknown",
        "sampling": {"temperature": 0.5, "talker": {"seed": 3}},
    }
    request = parse_request(request_inputs("What?\n", options, stream=True)).request
    (message,) = request.messages
    raw, *rest = message.content
    assert isinstance(raw, AudioPart) and raw.samples is not None and raw.sample_rate == 8000
    np.testing.assert_allclose(raw.samples, samples, atol=1e-7)
    assert [(type(part), _content(part)) for part in rest] == [
        (AudioPart, sound),
        (ImagePart, photo),
        (ImagePart, photo[:9]),
        (VideoPart, film),
        (VideoPart, film),
        (TextPart, "What?\n"),
    ]
    assert (request.modalities, request.voice, request.stream) == (["text"], "ünknown", True)
    assert request.sampling == {"temperature": 0.5, "talker": {"seed": 3}}


def test_messages_and_defaults() -> None:
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    request = parse_request(request_inputs(None, {"messages": chat, "voice": None}, stream=False)).request
    assert [(m.role, [_content(part) for part in m.content]) for m in request.messages] == [
        ("system", ["Be brief."]),
        ("user", ["Hi"]),
    ]
    assert (request.modalities, request.voice, request.sampling, request.stream) == (None, None, {}, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": 1}, "unknown option 'colour'; there are messages, audios"),
        ({"images": "photo.jpg"}, "images: must be a list"),
        ({"audios": b"RIFF"}, "audios: must be a list"),
        ({"modalities": "text"}, "modalities: must be a list"),
    ],
)
def test_wrong_options_are_refused_at_once(options: Any, message: str) -> None:
    with OmniClient("127.0.0.1:9") as client, pytest.raises(TypeError, match=message):
        client.stream("x", **options)


def test_unreadable_file_is_refused_at_once(tmp_path: Path) -> None:
    with OmniClient("127.0.0.1:9") as client, pytest.raises(FileNotFoundError):
        client.stream("x", images=[tmp_path / "none.jpg"])


def _content(part: Any) -> Any:
    return part.text if isinstance(part, TextPart) else part.data.tobytes()
