"""Payloads' names on the wire."""

from __future__ import annotations

import pytest

from omni_python.proto.payload import Payload, TextOutput, payload_type


def test_two_payloads_of_one_name_are_refused() -> None:
    """Else a process that knows both would read one as the other."""
    assert payload_type("payload.TextOutput") is TextOutput
    with pytest.raises(TypeError, match="two payloads would be 'payload.TextOutput' on the wire: omni_python.proto"):
        type("TextOutput", (Payload,), {"__module__": "another.payload", "__annotations__": {"text": "str"}})
    assert payload_type(TextOutput.wire_name) is TextOutput
