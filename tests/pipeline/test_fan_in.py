"""Fan-in: complete sets, active subsets, and sources that disagree with the declaration."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from omni_python.pipeline.fan_in import FanIn
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload, TextOutput

SOURCES = ("a", "b", "c")


def merge(payloads: dict[str, Payload]) -> Payload:
    return TextOutput("".join(f"{name}{p.text}" for name, p in payloads.items() if isinstance(p, TextOutput)))


def test_all_sources_in_any_order_merge_in_the_declared_order() -> None:
    fan_in = FanIn(SOURCES, merge)
    for _ in range(20):
        order = random.sample(SOURCES, 3)
        merged = [fan_in.add("r", source, TextOutput(source.upper())) for source in order]
        assert merged[:2] == [None, None]
        assert merged[2] == TextOutput("aAbBcC")
    assert len(fan_in) == 0


def test_requests_do_not_mix() -> None:
    fan_in = FanIn(("a", "b"), merge)
    assert fan_in.add("1", "a", TextOutput("x")) is None
    assert fan_in.add("2", "b", TextOutput("y")) is None
    assert len(fan_in) == 2
    assert fan_in.add("2", "a", TextOutput("z")) == TextOutput("azby")
    fan_in.discard("1")
    assert len(fan_in) == 0


def active(request_id: str, source: str, payload: Payload) -> Collection[str] | None:
    return {"a": ["a", "b"], "b": None, "c": ["nowhere"]}[source]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_an_active_subset_is_enough_once_it_is_known(order: tuple[str, str]) -> None:
    fan_in = FanIn(SOURCES, merge, active)
    assert fan_in.add("r", order[0], TextOutput("1")) is None
    assert fan_in.add("r", order[1], TextOutput("1")) == TextOutput("a1b1")


def test_disagreements_are_errors() -> None:
    with pytest.raises(OmniError, match=r"from d, which is not in wait_for \(a, b, c\)"):
        FanIn(SOURCES, merge).add("r", "d", TextOutput(""))
    fan_in = FanIn(SOURCES, merge, active)
    with pytest.raises(OmniError, match="must be a non-empty part of"):
        fan_in.add("r", "c", TextOutput(""))
    fan_in = FanIn(SOURCES, merge)
    fan_in.add("r", "a", TextOutput(""))
    with pytest.raises(OmniError, match="a second payload from a"):
        fan_in.add("r", "a", TextOutput(""))


def test_a_source_that_was_left_out_must_not_send() -> None:
    fan_in = FanIn(SOURCES, merge, lambda request_id, source, payload: None if source == "c" else ["a"])
    fan_in.add("r", "c", TextOutput(""))
    with pytest.raises(OmniError, match="from c, which wait_for_fn left out"):
        fan_in.add("r", "a", TextOutput(""))
