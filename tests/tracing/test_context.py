"""W3C Trace Context, level 1."""

from __future__ import annotations

import numpy as np
import pytest

from omni_python.glue.request import parse_request
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.trace_context import TraceContext, TraceWish

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PROMPT = {"text_input": np.array([b"hello"], object)}


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_a_valid_header_is_read(header: str, sampled: bool) -> None:
    assert TraceContext.parse(header) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
)
def test_an_invalid_header_is_no_context(header: str) -> None:
    expected = TraceContext(TRACE, SPAN, True) if header.strip() == f"00-{TRACE}-{SPAN}-01" else None
    assert TraceContext.parse(header) == expected


def test_a_request_says_what_it_wants() -> None:
    header = f"00-{TRACE}-{SPAN}-01"
    assert parse_request(PROMPT).trace is None
    assert parse_request(PROMPT, {"trace": True}).trace == TraceWish(True)
    assert parse_request(PROMPT, {"Traceparent": header}).trace == TraceWish(None, TraceContext(TRACE, SPAN, True))
    both = {**PROMPT, "sampling_parameters": np.array([b'{"trace": false, "seed": 1}'], object)}
    parsed = parse_request(both, {"traceparent": header})
    assert parsed.trace == TraceWish(False, TraceContext(TRACE, SPAN, True))
    assert parsed.request.sampling == {"seed": 1}


def test_a_broken_context_is_passed_over_and_a_broken_wish_refused() -> None:
    parsed = parse_request(PROMPT, {"traceparent": "broken"})
    assert parsed.trace is None and parsed.request.sampling == {}
    with pytest.raises(InvalidArgument, match="trace: must be true or false, not 'yes'"):
        parse_request(PROMPT, {"trace": "yes"})
