"""A request's parts under policies; errors name the part, and what the policy accepts."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.glue.request import parse_request
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.proto.errors import InvalidArgument, OmniError, Unsupported
from omni_python.proto.request import AudioPart, ImagePart, OmniRequest, TextPart, VideoPart
from tests.preprocessing.media_host import Host, Resolver, connections, running

DATA = "data:image/png;base64," + base64.b64encode(b"inline").decode()


def asked(*urls: str) -> OmniRequest:
    kinds = ("image_url", "audio_url", "video_url")
    parts = [{"type": kind, kind: {"url": url}} for kind, url in zip(kinds, urls, strict=False)]
    chat = json.dumps([{"role": "user", "content": [{"type": "text", "text": "?"}, *parts]}])
    return parse_request({"messages": np.array([chat.encode()], np.object_)}).request


def contents(request: OmniRequest) -> list[bytes]:
    parts = [part for message in request.messages for part in message.content if not isinstance(part, TextPart)]
    return [b"" if part.data is None else part.data.tobytes() for part in parts]


def test_the_default_takes_inline_data_alone() -> None:
    loader = MediaLoader(MediaPolicy())
    request = asked(DATA)
    assert contents(loader.load(request)) == [b"inline"] and not loader.needs_fetch(request)
    for url in ("http://media.test/x", "https://127.0.0.1/x", "HTTP://media.test/x", "file:///etc/passwd", "file:x"):
        request = asked(DATA, url)
        assert not loader.needs_fetch(request)
        scheme = url.partition(":")[0].lower()
        message = rf"messages\[0\].content\[2\]: '{scheme}' URLs are not loaded by this server; send the file inline"
        with connections() as made, pytest.raises(Unsupported, match=message):
            loader.load(request)
        assert made == []


@pytest.mark.parametrize("url", ["ftp://x/y", "javascript:x", "/etc/passwd", "x", "", "concat:a|b", "blob:x"])
def test_other_schemes_are_refused_by_the_request_parser(url: str) -> None:
    with pytest.raises(Unsupported, match="URLs are not loaded by any server; send the file inline as a data: URL"):
        asked(url)


def test_a_url_of_any_length() -> None:
    with pytest.raises(InvalidArgument, match="the URL has 10000 characters; at most 8192"):
        asked("http://media.test/" + "x" * 9982)


@pytest.mark.parametrize("name", ["audios", "images", "videos"])
def test_tensors_hold_content_and_never_addresses(name: str) -> None:
    for address in (b"http://media.test/x", b"https://media.test/x", b"file:///etc/passwd"):
        with pytest.raises(InvalidArgument, match=f"{name}: holds the content of files, not addresses"):
            parse_request({name: np.array([address], np.object_)})


def test_every_source_at_once(tmp_path: Path) -> None:
    (tmp_path / "sound").write_bytes(b"local")
    with running(host := Host()):
        policy = MediaPolicy(url_hosts=("media.test",), url_ports=(host.port,), file_root=str(tmp_path))
        loader = MediaLoader(policy, Resolver(media=[["127.0.0.1"]]), lambda address: address == "127.0.0.1")
        request = asked(DATA, f"file://{tmp_path}/sound", f"http://media.test:{host.port}/photo")
        assert loader.needs_fetch(request)
        loaded = loader.load(request)
        assert contents(loaded) == [b"inline", b"local", b"photo"] and not loader.needs_fetch(loaded)
        image, sound, film = loaded.messages[0].content[1:]
        assert isinstance(image, ImagePart) and isinstance(sound, AudioPart) and isinstance(film, VideoPart)
        assert contents(loader.load(loaded)) == contents(loaded)
        with pytest.raises(InvalidArgument, match=r"content\[1\]: the file is empty"):
            loader.load(asked(f"http://media.test:{host.port}/empty"))
        with pytest.raises(InvalidArgument, match=r"content\[2\]: media.test answers with status 404"):
            loader.load(asked(DATA, f"http://media.test:{host.port}/missing"))


def test_switched_off_sources() -> None:
    off = MediaLoader(MediaPolicy(inline=False, data_urls=False, url_hosts=("media.test",)))
    with pytest.raises(
        Unsupported, match=r"data: URLs are off .*; accepted: an http\(s\) URL of these hosts: media.test"
    ):
        off.load(asked(DATA))
    inline = (
        {"images": np.array([b"x"], np.object_)},
        {
            "audio": np.ones(3, np.float32),
            "audio_sample_rate": np.array([8000], np.int32),
        },
    )
    for tensors in inline:
        with pytest.raises(Unsupported, match=r"inline data is off by this server's media policy"):
            off.load(parse_request(tensors).request)
    with pytest.raises(
        Unsupported, match="'file' URLs are not loaded by this server; its media policy accepts an http"
    ):
        off.load(asked("file:///x"))
    nothing = MediaLoader(MediaPolicy(inline=False, data_urls=False))
    with pytest.raises(Unsupported, match="accepts text alone"):
        nothing.load(asked("http://media.test/x"))
    assert contents(MediaLoader(MediaPolicy(data_urls=False)).load(parse_request(inline[0]).request)) == [b"x"]


def test_the_bytes_of_one_request_count_together(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 60)
    loader = MediaLoader(MediaPolicy(max_bytes=100, file_root=str(tmp_path)))
    assert len(contents(loader.load(asked(f"file://{tmp_path}/file", DATA)))) == 2
    with pytest.raises(
        InvalidArgument, match=r"content\[2\]: the request's media files have more than 100 bytes together"
    ):
        loader.load(asked(*[f"file://{tmp_path}/file"] * 2))
    samples = {"audio": np.zeros(26, np.float32), "audio_sample_rate": np.array([8000], np.int32)}
    with pytest.raises(InvalidArgument, match="more than 100 bytes together"):
        loader.load(parse_request(samples).request)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hosts": []}, "unknown field `hosts`.*; valid fields: inline, data_urls, url_hosts"),
        ({"url_hosts": "a.test"}, "Expected `array`, got `str` - at `\\$.url_hosts`"),
        ({"url_hosts": ["http://a.test"]}, "'http://a.test' is no host like 'example.com'"),
        ({"url_hosts": ["A.test"]}, "is no host like"),
        ({"url_hosts": ["a.*.test"]}, "is no host like"),
        ({"url_hosts": [""]}, "is no host like"),
        ({"url_ports": [0]}, "Expected `int` >= 1"),
        ({"file_root": "relative"}, "must be the absolute path of an existing folder"),
        ({"file_root": "/nowhere/at/all"}, "must be the absolute path of an existing folder"),
        ({"max_bytes": 0}, "Expected `int` >= 1"),
        ({"fetch_seconds": 0}, "Expected `float` > 0"),
        ({"inline": "yes"}, "Expected `bool`"),
    ],
    ids=str,
)
def test_policies_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(OmniError, match=f"media: .*{message}"):
        MediaPolicy.of(fields)


def test_policies_from_a_configuration(tmp_path: Path) -> None:
    assert MediaPolicy.of(None) == MediaPolicy.of({}) == MediaPolicy()
    made = MediaPolicy.of({"url_hosts": ["*"], "file_root": str(tmp_path), "fetch_seconds": 3})
    assert made == MediaPolicy(url_hosts=("*",), file_root=str(tmp_path), fetch_seconds=3.0) and made.fetches
