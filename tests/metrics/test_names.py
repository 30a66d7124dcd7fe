"""Names keep Prometheus' conventions, and the dashboard and the alerts know them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_python.glue.metric_names import FAMILIES, Family, Kind
from tests.metrics.promql import grouping, selectors

MONITORING = Path(__file__).parents[2] / "docker" / "monitoring"
UNITS = ("seconds", "bytes", "ratio", "tokens", "size")
SERIES = {series: family for family in FAMILIES for series in family.series}


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    return loaded


def queries() -> list[str]:
    """The dashboard's, as Prometheus gets them with all pipelines chosen."""
    given = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [query.replace("$__rate_interval", "1m").replace("$pipeline", ".*") for query in given]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from queries()
    for rule in rules():
        yield rule["expr"]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_name_keeps_the_conventions(family: Family) -> None:
    assert re.fullmatch(r"omni(_[a-z]+)+", family.name)
    assert (family.kind is Kind.COUNTER) == family.name.endswith("_total")
    assert not re.search(r"_(bucket|sum|count|info|milliseconds|ms|kb|mb|minutes|percent)(_|$)", family.name)
    assert family.help and not family.help.endswith(".")
    if family.kind is Kind.HISTOGRAM:
        assert family.name.endswith(UNITS)
    for label in family.labels:
        assert re.fullmatch(r"[a-z]+", label) and label not in ("le", "quantile", "pipeline", "instance", "job")


def test_no_two_series_have_one_name() -> None:
    assert len(SERIES) == sum(len(family.series) for family in FAMILIES)


def test_no_other_module_spells_a_metric() -> None:
    package = Path(__file__).parents[2] / "backends" / "omni_python"
    spelled = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(f'"{family.name}"' in path.read_text() for family in FAMILIES)
    }
    assert spelled == {"glue/metric_names.py"}


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_asks_for_what_there_is(expression: str) -> None:
    asked = selectors(expression)
    assert asked
    known: set[str] = set()
    for selector in asked:
        family = SERIES[selector.name]
        labels = {"pipeline", *family.labels} | ({"le"} if selector.name.endswith("_bucket") else set())
        assert {label for label, _, _ in selector.matchers} <= labels
        if family.kind is not Kind.GAUGE:
            assert re.search(rf"(rate|increase)\({selector.name}", expression), "a counter is read by its rate"
        known |= labels
    assert grouping(expression) <= known
    if "histogram_quantile" in expression:
        assert "le" in grouping(expression) and all(selector.name.endswith("_bucket") for selector in asked)


def test_no_metric_is_missing_from_the_dashboard() -> None:
    shown = {SERIES[selector.name].name for query in queries() for selector in selectors(query)}
    assert shown == {family.name for family in FAMILIES}


def test_the_dashboard_can_be_imported() -> None:
    board = dashboard()
    assert board["uid"] and board["title"] and board["schemaVersion"] >= 36
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= 24 - place["w"]
    assert {variable["name"] for variable in board["templating"]["list"]} == {"datasource", "pipeline"}


def test_alerts_say_what_is_wrong() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        grouped = grouping(rule["expr"])
        assert not grouped or used <= grouped
