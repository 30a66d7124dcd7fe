"""What this server loads for its clients, and within which bounds."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from omni_python.proto.errors import InvalidArgument

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*|\[[0-9a-f:.]+\]")

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class MediaPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The preprocessing stage's factory argument `media`. The default takes inline data alone.

    inline: files as bytes (`audios`, `images`, `videos`, base64 of `input_audio`) and raw samples.
    data_urls: `data:` URLs.
    url_hosts: hosts of http(s) URLs that are fetched: "example.com" that name alone, "*.example.com" every name
        below it, "*" any. Whatever stands here, an address that is not public is never connected to. Empty: no URLs.
    url_ports: their ports.
    file_root: the absolute folder below which `file:` URLs are read; None: no local files.
    max_bytes: of all files of one request together, encoded.
    fetch_seconds: for getting all files of one request, from the first look-up to the last byte.
    decode_seconds: for decoding all files of one request; a single one has a minute at most.
    max_redirects: of one URL; each is checked like the first address.
    max_fetching: requests whose files are being fetched at the same time; more are refused.
    """

    inline: bool = True
    data_urls: bool = True
    url_hosts: tuple[str, ...] = ()
    url_ports: tuple[Annotated[int, msgspec.Meta(ge=1, le=65535)], ...] = (80, 443)
    file_root: str | None = None
    max_bytes: _Count = 256 << 20
    fetch_seconds: _Positive = 20.0
    decode_seconds: _Positive = 60.0
    max_redirects: Annotated[int, msgspec.Meta(ge=0, le=20)] = 3
    max_fetching: _Count = 64

    def __post_init__(self) -> None:
        for host in self.url_hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(
                    f"url_hosts: {host!r} is no host like 'example.com', '*.example.com' or '*', lower-case"
                )
        if self.file_root is not None and not (os.path.isabs(self.file_root) and os.path.isdir(self.file_root)):
            raise ValueError(f"file_root: {self.file_root!r} must be the absolute path of an existing folder")

    @classmethod
    def of(cls, fields: Mapping[str, Any] | None) -> MediaPolicy:
        """From a configuration's mapping. Raises `InvalidArgument` naming the field and what is valid."""
        try:
            return msgspec.convert(fields or {}, cls)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"media: {error}; valid fields: {', '.join(cls.__struct_fields__)}") from None

    @property
    def fetches(self) -> bool:
        """Whether anything is loaded from outside the request."""
        return bool(self.url_hosts) or self.file_root is not None

    def allows_host(self, host: str) -> bool:
        """Whether `host`, lower-case, is on the list."""
        return any(
            allowed in ("*", host) or (allowed.startswith("*.") and host.endswith(allowed[1:]))
            for allowed in self.url_hosts
        )

    def accepted(self) -> str:
        """What is valid, for error messages."""
        ways = []
        if self.inline:
            ways.append("the file's content inline")
        if self.data_urls:
            ways.append("a data: URL")
        if self.url_hosts:
            ways.append(f"an http(s) URL of these hosts: {', '.join(self.url_hosts)}")
        if self.file_root is not None:
            ways.append(f"a file: URL below {self.file_root}")
        return " or ".join(ways) or "text alone"
