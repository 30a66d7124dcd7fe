"""URLs: only the hosts of the list, only public addresses, only so much and so long; decided before connecting."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_python.preprocessing.media.addresses import is_public_address
from omni_python.preprocessing.media.budget import Budget
from omni_python.preprocessing.media.http import HttpFetcher, parse_url
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.proto.errors import Cancelled, InvalidArgument
from tests.preprocessing.media_host import Host, Resolver, connections, running

# fmt: off
NOT_PUBLIC = [
    "127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
    "0.0.0.0", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.8", "192.0.2.1", "198.18.0.1",
    "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "::", "::1",
    "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b::8.8.8.8",
    "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2001:10::1", "2002:7f00:1::", "3fff::1", "5f00::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%lo", "fec0::1", "ff02::1", "4000::1", "localhost", "127.1",
    "0x7f000001", "2130706433",
]
# fmt: on


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with running(server := Host()):
        yield server


def fetcher(host: Host, resolver: Resolver | None = None, **fields: Any) -> HttpFetcher:
    """One for which 127.0.0.1, and no other address of loopback, is public."""
    policy = MediaPolicy(url_hosts=("*.test", "169.254.169.254"), url_ports=(80, 443, host.port), **fields)
    return HttpFetcher(policy, resolver or Resolver(media=[["127.0.0.1"]]), lambda address: address == "127.0.0.1")


def fetch(host: Host, path: str, *, resolver: Resolver | None = None, seconds: float = 10, **fields: Any) -> bytes:
    budget = Budget(1_000_000, seconds)
    return bytes(fetcher(host, resolver, **fields).fetch(f"http://media.test:{host.port}/{path}", budget))


def test_content_comes_from_the_checked_address_under_the_hosts_name(host: Host) -> None:
    with connections() as made:
        assert fetch(host, "photo?a=%20b#part") == b"photoa=%20b"
    assert made == ["127.0.0.1"]
    headers = host.seen[-1]
    assert headers["Host"] == f"media.test:{host.port}" and headers["Accept-Encoding"] == "identity"
    assert not {"Cookie", "Authorization", "Proxy-Authorization", "Referer"} & set(headers)


def test_environment_proxies_are_not_asked(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.2:9")
    assert fetch(host, "photo") == b"photo"


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_that_are_not_public_are_refused_before_any_connection(host: Host, address: str) -> None:
    assert not is_public_address(address)
    policy = MediaPolicy(url_hosts=("*",))
    for answer in ([address], ["8.8.8.8", address]):  # one bad address spoils the host
        resolver = Resolver(inside=[answer])
        with connections() as made, pytest.raises(InvalidArgument, match="'inside.test' is not on the public internet"):
            HttpFetcher(policy, resolver).fetch("http://inside.test/x", Budget(100, 10))
        assert made == [] and resolver.asked == ["inside.test"]


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001::1"])
def test_public_addresses(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize(
    ("literal", "message"),
    [
        ("127.0.0.1", "not on the public internet"),
        ("[::1]", "not on the public internet"),
        ("[::ffff:127.0.0.1]", "not on the public internet"),
        ("2130706433", "not on the public internet|cannot be found"),
        ("0x7f.1", "not on the public internet|cannot be found"),
        ("127.1", "not on the public internet|cannot be found"),
    ],
)
def test_address_literals_are_checked_too(literal: str, message: str) -> None:
    with connections() as made, pytest.raises(InvalidArgument, match=message):
        HttpFetcher(MediaPolicy(url_hosts=("*",))).fetch(f"http://{literal}/x", Budget(100, 10))
    assert made == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://other.example/x", "'other.example' is not on this server's list; accepted: .*media.test"),
        ("http://media.test.other.example/x", "not on this server's list"),
        ("http://xmedia.test/x", "not on this server's list"),
        ("http://media.test:22/x", "port 22 is not allowed; valid: 80, 443"),
        ("http://media.test:99999/x", "is no URL"),
        ("http://user:secret@media.test/x", "user name or password"),
        ("http://media.test@other.example/x", "user name or password"),
        ("http://other.example\\@media.test/x", "is no http"),
        ("http://media.test\\.other.example/x", "is no http"),
        ("http://media.test /x", "is no http"),
        ("http://media.test/\r\nX: y", "is no http"),
        ("http://med\u0131a.test/x", "is no http"),
        ("http:///x", "is no http"),
        ("http://[::1/x", "is no URL"),
        ("ftp://media.test/x", "is no http"),
        ("gopher://media.test/x", "is no http"),
    ],
)
def test_urls_that_are_refused_without_a_look_up(url: str, message: str) -> None:
    resolver = Resolver()
    with connections() as made, pytest.raises(InvalidArgument, match=message):
        HttpFetcher(MediaPolicy(url_hosts=("media.test",)), resolver).fetch(url, Budget(100, 10))
    assert made == [] and resolver.asked == []


def test_a_list_of_hosts() -> None:
    policy = MediaPolicy(url_hosts=("a.test", "*.b.test", "[2606:4700::1111]"))
    for url in (
        "http://a.test/",
        "HTTPS://A.TEST./",
        "http://x.b.test/",
        "https://x.y.b.test/",
        "http://[2606:4700::1111]/",
    ):
        assert parse_url(url, policy).host
    for url in ("http://x.a.test/", "http://b.test/", "http://xb.test/"):
        with pytest.raises(InvalidArgument, match="not on this server's list"):
            parse_url(url, policy)


def test_redirects_are_followed_within_bounds(host: Host) -> None:
    assert fetch(host, "to?photo") == b"photo"
    assert fetch(host, f"to?http://media.test:{host.port}/to?/photo") == b"photo"
    resolver = Resolver(media=[["127.0.0.1"]])
    with pytest.raises(InvalidArgument, match="redirects more than 2 times"):
        fetch(host, "to?/to?/to?/to?/to?/photo", resolver=resolver, max_redirects=2)
    assert len(resolver.asked) == 3
    with pytest.raises(InvalidArgument, match="redirects without saying where to"):
        fetch(host, "nowhere")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("http://127.0.0.1/x", "'127.0.0.1' is not on this server's list"),
        ("http://169.254.169.254/latest/meta-data/", "'169.254.169.254' is not on the public internet"),
        ("http://inside.test/x", "'inside.test' is not on the public internet"),
        ("http://inside6.test/x", "'inside6.test' is not on the public internet"),
        ("//inside.test/x", "'inside.test' is not on the public internet"),
        ("http://user:pw@media.test/x", "user name or password"),
        ("http://media.test:6379/x", "port 6379 is not allowed"),
        ("file:///etc/passwd", "is no http"),
        ("gopher://media.test/_x", "is no http"),
        ("data:text/plain,hi", "is no http"),
    ],
)
def test_each_redirect_is_checked_like_the_first_address(host: Host, target: str, message: str) -> None:
    resolver = Resolver(
        media=[["127.0.0.1"]],
        inside=[["10.0.0.1"]],
        inside6=[["::1"]],
    )
    resolver.answers["169.254.169.254"] = [["169.254.169.254"]]
    with connections() as made, pytest.raises(InvalidArgument, match=message):
        fetch(host, f"to?{target}", resolver=resolver)
    assert made == ["127.0.0.1"]  # to the host that redirects, and nowhere else


def test_names_that_change_their_address_gain_nothing(host: Host) -> None:
    resolver = Resolver(media=[["127.0.0.1"], ["127.0.0.2"]])
    with connections() as made:
        assert fetch(host, "photo", resolver=resolver) == b"photo"
    assert made == ["127.0.0.1"] and len(resolver.asked) == 1  # the one answer is checked and used

    resolver = Resolver(media=[["127.0.0.1"], ["127.0.0.2"]])
    with connections() as made, pytest.raises(InvalidArgument, match="not on the public internet"):
        fetch(host, "to?/photo", resolver=resolver)
    assert made == ["127.0.0.1"] and len(resolver.asked) == 2


def test_https_never_falls_back_to_http(host: Host, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2"),
            *("-subj", "/CN=media.test", "-addext", "subjectAltName=DNS:media.test"),
        ],
        check=True,
        capture_output=True,
    )
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    resolver = Resolver(media=[["127.0.0.1"]], other=[["127.0.0.1"]])
    with running(secure := Host(serving)):
        policy = MediaPolicy(url_hosts=("*",), url_ports=(secure.port, host.port))

        def get(name: str, path: str, tls: ssl.SSLContext | None) -> bytes:
            allowed = HttpFetcher(policy, resolver, lambda address: address == "127.0.0.1", tls)
            return bytes(allowed.fetch(f"https://{name}.test:{secure.port}/{path}", Budget(1000, 10)))

        assert get("media", "photo", trusting) == b"photo"
        with pytest.raises(InvalidArgument, match="redirects from https to http"):
            get("media", f"to?http://media.test:{host.port}/photo", trusting)
        with pytest.raises(InvalidArgument, match="other.test cannot be read: .*CERTIFICATE_VERIFY_FAILED"):
            get("other", "photo", trusting)
        with pytest.raises(InvalidArgument, match="CERTIFICATE_VERIFY_FAILED"):
            get("media", "photo", None)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("huge", "more than 1000000 bytes together"),
        ("endless", "more than 1000000 bytes together"),
        ("zipped", "sends 'gzip' encoded content, which is not unpacked"),
        ("missing", "media.test answers with status 404, not 200"),
        ("cut", "media.test cannot be read"),
        ("long_header", "media.test cannot be read"),
        ("garbage", "media.test cannot be read"),
    ],
)
def test_answers_that_are_no_file(host: Host, path: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        fetch(host, path)


@pytest.mark.parametrize("path", ["drip", "drip_header"])
def test_a_slow_drip_ends_with_the_time_for_the_whole_file(host: Host, path: str) -> None:
    with pytest.raises(InvalidArgument, match="took longer than 0.5 s, the most that is waited"):
        fetch(host, path, seconds=0.5)


def test_a_slow_look_up_ends_with_the_time_for_the_whole_file(host: Host) -> None:
    release = threading.Event()

    def resolver(name: str, port: int) -> list[str]:
        release.wait(30)
        return ["127.0.0.1"]

    slow = HttpFetcher(MediaPolicy(url_hosts=("*",)), resolver)
    with connections() as made, pytest.raises(InvalidArgument, match="took longer than 0.3 s"):
        slow.fetch("http://media.test/x", Budget(1000, 0.3))
    release.set()
    assert made == []


def test_a_request_that_is_over_stops_loading(host: Host) -> None:
    over = threading.Event()
    threading.Timer(0.3, over.set).start()
    with pytest.raises(Cancelled):
        fetcher(host).fetch(f"http://media.test:{host.port}/drip", Budget(1 << 30, 60, over.is_set))


def test_nothing_listens(host: Host) -> None:
    with Host() as closed:
        port = closed.port
    policy = MediaPolicy(url_hosts=("*",), url_ports=(port,))
    gone = HttpFetcher(policy, Resolver(media=[["127.0.0.3", "127.0.0.1"]]), lambda address: True)
    with connections() as made, pytest.raises(InvalidArgument, match="media.test cannot be read: ConnectError"):
        gone.fetch(f"http://media.test:{port}/x", Budget(1000, 10))
    assert made == ["127.0.0.3", "127.0.0.1"]
    with pytest.raises(InvalidArgument, match="host 'nowhere.test' cannot be found"):
        gone.fetch(f"http://nowhere.test:{port}/x", Budget(1000, 10))


def test_loading_leaves_no_thread(host: Host) -> None:
    fetch(host, "photo")
    for _ in range(100):
        if not any(thread.name.startswith("omni-resolve") for thread in threading.enumerate()):
            return
        time.sleep(0.02)
    raise AssertionError(threading.enumerate())
