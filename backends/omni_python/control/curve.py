"""The key by which processes on different hosts know each other: one for a pipeline, the same on all of its hosts.

It is a key of CURVE (RFC 26, as libzmq has it). Both sides of a connection prove that they have it, and what goes over
it is encrypted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from omni_python.proto.errors import OmniError

KEY_LENGTH = 40
"""Characters of a key in Z85 (RFC 32)."""


@dataclass(frozen=True)
class CurveKey:
    """Both halves, in Z85. The public one is known to none but those who have the secret one."""

    public: bytes = field(repr=False)
    secret: bytes = field(repr=False)


def make_key(path: Path) -> None:
    """Write a new secret key; only this user may read it. Raises `OSError`, also where the file is there already."""
    _, secret = zmq.curve_keypair()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret + b"\n")


def load_key(path: Path) -> CurveKey:
    """Raises `OmniError` for a file that cannot be read, that everybody may read, or that holds no key."""
    try:
        mode = path.stat().st_mode
        text = path.read_bytes().strip()
    except OSError as error:
        raise OmniError(f"endpoints.key_file: {path} cannot be read: {error.strerror}; `omni key` makes it") from None
    if mode & 0o007:
        raise OmniError(f"endpoints.key_file: everybody may read {path}; chmod o= {path}")
    try:
        if len(text) != KEY_LENGTH:
            raise ValueError
        return CurveKey(zmq.curve_public(text), text)
    except (ValueError, zmq.ZMQError):
        raise OmniError(
            f"endpoints.key_file: {path} holds no key of {KEY_LENGTH} characters, as `omni key` makes"
        ) from None
