"""Every target of `scripts/fuzz` on its corpus, and on what hypothesis makes of it."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from omni_python.glue.request import parse_request
from omni_python.preprocessing.media.addresses import is_public_address
from omni_python.preprocessing.media.budget import Budget
from omni_python.preprocessing.media.files import read_file_url
from omni_python.preprocessing.media.http import HttpFetcher
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.request import OmniRequest
from tests.fuzz.targets import TARGETS
from tests.preprocessing.media_host import connections

CORPUS = Path(__file__).parent / "corpus"
SEEDS = {name: [path.read_bytes() for path in sorted((CORPUS / name).iterdir())] for name in TARGETS}

quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def test_every_target_has_a_small_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert all(len(seeds) > 1 and sum(map(len, seeds)) < 200_000 for seeds in SEEDS.values())


@pytest.mark.parametrize("name", TARGETS)
def test_corpus(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)
        TARGETS[name](seed[: len(seed) // 2])


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed with some of its bytes changed, cut out, or put in."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        new = draw(st.one_of(st.binary(max_size=8), st.sampled_from([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"])))
        data[at : at + draw(st.sampled_from([0, len(new), 64]))] = new
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_seeds(name: str) -> None:
    @quick
    @given(damaged(SEEDS[name]))
    def check(data: bytes) -> None:
        TARGETS[name](data)

    check()


@pytest.mark.parametrize("name", TARGETS)
@quick
@given(data=st.binary(max_size=400))
def test_any_bytes(name: str, data: bytes) -> None:
    TARGETS[name](data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
url_texts = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["http://", "https://", "file://", "data:,", "data:x;base64,", "data:x;base64,QUJD"]).flatmap(
        lambda head: st.text(alphabet=string.printable, max_size=40).map(lambda tail: head + tail)
    ),
)
kinds = st.sampled_from(["text", "input_audio", "audio_url", "image_url", "video_url"])
parts = st.one_of(
    json_values,
    st.builds(lambda kind, url: {"type": kind, kind: {"url": url}}, kinds, url_texts),
    st.builds(lambda kind, value: {"type": kind, kind: value}, kinds, json_values),
)
roles = st.sampled_from(["system", "user", "assistant", "tool", ""])
chats = st.lists(
    st.fixed_dictionaries({"role": roles, "content": st.one_of(st.text(max_size=20), st.lists(parts, max_size=3))}),
    max_size=3,
)


@settings(quick, max_examples=200)
@given(st.one_of(chats, json_values))
@example([{"role": "user", "content": "\ud800"}])
def test_chats_are_requests_or_errors(chat: Any) -> None:
    text = json.dumps(chat).encode()
    try:
        parsed = parse_request({"messages": np.array([text], np.object_)})
    except OmniError as error:
        assert str(error)
        return
    assert isinstance(parsed.request, OmniRequest) and parsed.request.messages
    try:
        MediaLoader(MediaPolicy()).load(parsed.request)
    except OmniError as error:
        assert "messages[" in str(error)


hosts = st.one_of(
    st.ip_addresses().map(lambda address: f"[{address}]" if address.version == 6 else str(address)),
    st.text(alphabet=string.ascii_letters + string.digits + ".-_%@[]:\\/?#", max_size=30),
    st.integers(0, 2**32).map(str),
    st.sampled_from(["localhost", "127.1", "0x7f.1", "0177.0.0.1", "[::ffff:7f00:1]", "[::]", "a.test"]),
)


@settings(quick, max_examples=300)
@given(
    scheme=st.sampled_from(["http", "https", "HTTP", "ftp", ""]),
    host=hosts,
    rest=st.text(alphabet=string.printable, max_size=30),
    answers=st.lists(st.ip_addresses().map(str), max_size=3),
)
def test_no_url_leads_to_an_address_that_is_not_public(scheme: str, host: str, rest: str, answers: list[str]) -> None:
    """The addresses are those of a resolver that says anything; public ones are replaced, since nothing may leave."""
    inside = [address for address in answers if not is_public_address(address)] or ["10.0.0.1", "::1"]
    fetcher = HttpFetcher(MediaPolicy(url_hosts=("*",), url_ports=(80, 443)), lambda name, port: inside)
    with connections() as made, pytest.raises(InvalidArgument):
        fetcher.fetch(f"{scheme}://{host}/{rest}", Budget(100, 10))
    assert made == []


@settings(quick, max_examples=300)
@given(
    steps=st.lists(
        st.sampled_from(["", ".", "..", "%2e%2e", "media", "inside", "file", "out", "..%2f", "\0", "%00", "é", " "]),
        max_size=6,
    ),
    slashes=st.sampled_from(["file://", "file:", "file:///", "file:////", "file://localhost"]),
)
def test_no_file_url_leads_out_of_the_root(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], slashes: str
) -> None:
    base = tmp_path_factory.getbasetemp() / "fuzzed-root"
    root = base / "media"
    if not root.exists():
        (root / "inside").mkdir(parents=True)
        (root / "inside" / "file").write_bytes(b"inside")
        (base / "file").write_bytes(b"outside")
        (root / "out").symlink_to(base)
    for start in (root, base, Path("/")):
        url = slashes + "/".join([str(start), *steps])
        try:
            content = read_file_url(url, str(root), Budget(100, 10))
        except InvalidArgument as error:
            assert str(error)
        else:
            assert content == b"inside"
