"""What a client's JSON would become, told before it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_python.proto import json_size
from omni_python.proto.json_size import MAX_JSON_VALUES, has_too_many_values

LIMIT = 20

values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='\\",[{]}x', max_size=12),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(alphabet='\\",[{]}x', max_size=6), inner),
    max_leaves=40,
)


def marks(value: Any) -> int:
    """Commas and opening brackets in a value's JSON, outside of its strings."""
    if not isinstance(value, list | dict):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(len(value) - 1, 0) + sum(map(marks, inner))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 3 bytes, so that strings and escape sequences go on in the next."""
    monkeypatch.setattr(json_size, "_CHUNK", 3)
    monkeypatch.setattr(json_size, "MAX_JSON_VALUES", LIMIT)


@pytest.mark.usefixtures("small")
def test_only_what_is_no_text_counts() -> None:
    @given(values)
    def check(value: Any) -> None:
        assert has_too_many_values(json.dumps(value).encode()) == (marks(value) > LIMIT)

    check()


@pytest.mark.parametrize(
    ("text", "many"),
    [
        (b"[" + b"0," * MAX_JSON_VALUES + b"0]", True),
        (b"[" * (MAX_JSON_VALUES + 1), True),
        (b'{"":' * (MAX_JSON_VALUES + 1), True),
        (b"[" + b"0," * (MAX_JSON_VALUES - 1) + b"0]", False),
        (b'["' + b"," * (2 * MAX_JSON_VALUES) + b'"]', False),
        (b'["' + b'\\",{\\\\' * (2 * MAX_JSON_VALUES) + b'"]', False),
        (b'["' + b"A" * (4 << 20) + b'", "\\\\"' + b",0" * MAX_JSON_VALUES + b"]", True),
        (b"", False),
    ],
    ids=range(8),
)
def test_the_limit(text: bytes, many: bool) -> None:
    assert has_too_many_values(text) == many
