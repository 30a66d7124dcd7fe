"""Payloads as bytes, without pickle: MessagePack with every tensor lifted out of it.

A tensor becomes an extension (`headers`); its bytes lie in a separate buffer. That buffer rides inside the message when
it is small and in a relay slot otherwise, and the receiver's tensors are views of it. Nothing that is decoded can run
code, and every reference is checked against the buffer's bounds.
"""

from omni_python.proto.codec.decode import PayloadDecoder
from omni_python.proto.codec.encode import MAX_BODY, DevicePart, EncodedPayload, address_of
from omni_python.proto.codec.headers import ALIGNMENT, MAX_TENSORS, CodecError

__all__ = [
    "ALIGNMENT",
    "MAX_BODY",
    "MAX_TENSORS",
    "CodecError",
    "DevicePart",
    "EncodedPayload",
    "PayloadDecoder",
    "address_of",
]
