"""Files behind http(s) URLs, from public addresses alone.

httpcore speaks the protocol; this module decides whom it may speak to. Every connection goes to the very address
that was checked: the host is looked up once, here, and httpcore's own look-up sees only that address. Names stay in
the Host header and in TLS, so certificates are checked as ever. No proxy, cookie or credential is used.
"""

from __future__ import annotations

import functools
import re
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpcore

from omni_python.preprocessing.media.addresses import Resolver, is_public_address, resolve
from omni_python.preprocessing.media.budget import Budget
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.proto.errors import InvalidArgument, OmniError

_PRINTABLE = re.compile(r"[!-\[\]-~]+")  # ASCII without space and backslash
_POLL = 0.2
"""Seconds between looks at whether the request is over."""
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """A checked URL; `target` is the path with the query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def url(self) -> httpcore.URL:
        return httpcore.URL(scheme=self.scheme, host=self.host, port=self.port, target=self.target)

    @property
    def header(self) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}").encode()


def parse_url(url: str, policy: MediaPolicy) -> Address:
    """Take `url` apart; `InvalidArgument` where it is malformed or the policy does not allow its host or port."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise InvalidArgument(f"{url!r} is no URL: {error}") from None
    if not _PRINTABLE.fullmatch(url) or not host or parts.scheme not in _PORTS:
        raise InvalidArgument(
            f"{url[:200]!r} is no http(s) URL; write it in ASCII, with %-escapes and the host's xn-- form"
        )
    if "@" in parts.netloc:
        raise InvalidArgument("URLs with a user name or password are not loaded")
    port = _PORTS[parts.scheme] if port is None else port
    if not policy.allows_host(f"[{host}]" if ":" in host else host):
        raise InvalidArgument(f"host {host!r} is not on this server's list; accepted: {policy.accepted()}")
    if port not in policy.url_ports:
        raise InvalidArgument(f"port {port} is not allowed; valid: {', '.join(map(str, policy.url_ports))}")
    return Address(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


_default_tls = functools.cache(httpcore.default_ssl_context)


class HttpFetcher:
    """Fetches URLs as `policy` allows. `is_allowed_address` decides about each address that `resolver` finds."""

    def __init__(
        self,
        policy: MediaPolicy,
        resolver: Resolver = resolve,
        is_allowed_address: Callable[[str], bool] = is_public_address,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._is_allowed_address = is_allowed_address
        self._tls = tls or _default_tls()

    def fetch(self, url: str, budget: Budget) -> bytearray:
        """The content behind `url`; raises `InvalidArgument` for whatever is not allowed, too large, or not there."""
        address = parse_url(url, self._policy)
        for _ in range(self._policy.max_redirects + 1):
            found = self._get(address, budget)
            if not isinstance(found, Address):
                return found
            if address.scheme == "https" and found.scheme == "http":
                raise InvalidArgument(f"{address.host} redirects from https to http, which is not followed")
            address = found
        raise InvalidArgument(f"{url!r} redirects more than {self._policy.max_redirects} times")

    def _get(self, address: Address, budget: Budget) -> bytearray | Address:
        """The content, or where to look for it."""
        connections = _Connections(self._addresses(address, budget), budget)
        headers = [(b"Host", address.header), (b"Accept", b"*/*"), (b"Accept-Encoding", b"identity")]
        try:
            with (
                httpcore.ConnectionPool(ssl_context=self._tls, network_backend=connections) as pool,
                pool.stream("GET", address.url, headers=headers) as response,
            ):
                return self._answer(address, response, budget)
        except OmniError:
            raise
        except Exception as error:  # what httpcore, h11 and ssl raise for a host that misbehaves
            budget.seconds()
            raise InvalidArgument(f"{address.host} cannot be read: {type(error).__name__} {error}".rstrip()) from None

    def _answer(self, address: Address, response: httpcore.Response, budget: Budget) -> bytearray | Address:
        headers = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        if response.status in _REDIRECTS:
            try:
                target = urljoin(f"{address.scheme}://{address.header.decode()}{address.target}", headers[b"location"])
            except (KeyError, ValueError):
                raise InvalidArgument(f"{address.host} redirects without saying where to") from None
            return parse_url(target.partition("#")[0], self._policy)
        if response.status != 200:
            raise InvalidArgument(f"{address.host} answers with status {response.status}, not 200")
        encoding = headers.get(b"content-encoding", "identity")
        if encoding != "identity":
            raise InvalidArgument(f"{address.host} sends {encoding!r} encoded content, which is not unpacked")
        length = headers.get(b"content-length", "0")
        budget.check(int(length) if length.isdecimal() else 0)
        content = bytearray()
        with closing(response.iter_stream()) as pieces:  # type: ignore[type-var]
            for piece in pieces:
                budget.take(len(piece))
                content += piece
        return content

    def _addresses(self, address: Address, budget: Budget) -> list[str]:
        """Where to connect to; all addresses of the host must be allowed."""
        found = _within(lambda: self._resolver(address.host, address.port), address.host, budget)
        refused = [text for text in found if not self._is_allowed_address(text)]
        if refused or not found:
            raise InvalidArgument(
                f"host {address.host!r} is not on the public internet, which is all that this server fetches from"
            )
        return found


def _within(look_up: Callable[[], list[str]], host: str, budget: Budget) -> list[str]:
    """Look a name up on a thread of its own: the system's function cannot be told to stop."""
    outcome: list[list[str]] = []

    def run() -> None:
        try:
            outcome.append(look_up())
        except (OSError, UnicodeError):
            outcome.append([])

    thread = threading.Thread(target=run, name="omni-resolve", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(min(_POLL, budget.seconds()))
    if not outcome or not outcome[0]:
        raise InvalidArgument(f"host {host!r} cannot be found")
    return outcome[0]


class _Connections(httpcore.SyncBackend):
    """httpcore's way to the network, bent to addresses that were checked before."""

    def __init__(self, addresses: list[str], budget: Budget) -> None:
        self._addresses = addresses
        self._budget = budget

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        for address in self._addresses[:-1]:
            try:
                return self._connect(address, port, self._budget.seconds() / 2)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return self._connect(self._addresses[-1], port, self._budget.seconds())

    def _connect(self, address: str, port: int, seconds: float) -> httpcore.NetworkStream:
        return _Stream(super().connect_tcp(address, port, seconds), self._budget)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        raise NotImplementedError


class _Stream(httpcore.NetworkStream):
    """A connection that ends with the request's budget, however slowly the other side drips."""

    def __init__(self, inner: httpcore.NetworkStream, budget: Budget) -> None:
        self._inner = inner
        self._budget = budget

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while True:
            try:
                return self._inner.read(max_bytes, min(_POLL, self._budget.seconds()))
            except httpcore.ReadTimeout:
                continue

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._budget.seconds())

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, self._budget.seconds()), self._budget)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
