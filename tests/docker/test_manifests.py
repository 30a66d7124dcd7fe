"""The manifests have only the fields that we use, all of them, with values that could be right."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import kubernetes_validate
import pytest

from tests.docker.files import CLAIM, COMPOSE, RUNTIME, SERVICES, document, schema

ALL = [RUNTIME, CLAIM, COMPOSE, *SERVICES]
KUBERNETES = "1.30"
"""The oldest that has `preStop: {sleep: ...}` by default."""

files = pytest.mark.parametrize("file", ALL, ids=lambda path: path.name)


class Broken(NamedTuple):
    """A copy of a document with one thing wrong, and what that is."""

    what: str
    document: Any


@files
def test_it_fits_its_schema(file: Path) -> None:
    jsonschema_rs.Draft202012Validator(schema(file)).validate(document(file))


@files
def test_whatever_is_broken_is_refused(file: Path) -> None:
    """Every field misspelt or left out, every value misspelt, negative or turned round, every list without items."""
    validator = jsonschema_rs.Draft202012Validator(schema(file))
    cases = list(_broken(document(file)))
    assert len(cases) > 10
    assert [case.what for case in cases if validator.is_valid(case.document)] == []


def test_the_claim_is_one_that_kubernetes_takes() -> None:
    kubernetes_validate.validate(document(CLAIM), KUBERNETES, strict=True)


def test_the_runtimes_container_is_one_that_kubernetes_takes() -> None:
    kubernetes_validate.validate(_pod(document(RUNTIME)), KUBERNETES, strict=True)


def test_kubernetes_refuses_a_misspelt_field() -> None:
    pod = _pod(document(RUNTIME))
    probe = pod["spec"]["containers"][0]["livenessProbe"]
    probe["failureTreshold"] = probe.pop("failureThreshold")
    with pytest.raises(kubernetes_validate.ValidationError, match="failureTreshold"):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def _pod(runtime: Any) -> dict[str, Any]:
    spec = {name: runtime["spec"][name] for name in ("containers", "volumes")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "omni"}, "spec": spec}


def _places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields and items below `part`."""
    entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _misspelt(whole: Any) -> Iterator[Broken]:
    for path in _places(whole):
        if isinstance(path[-1], str):
            broken, parent = _copied(whole, path)
            parent[path[-1] + "x"] = parent.pop(path[-1])
            yield Broken(f"{path} misspelt", broken)


def _broken(whole: Any) -> Iterator[Broken]:
    yield from _misspelt(whole)
    for path in _places(whole):
        broken, parent = _copied(whole, path)
        if isinstance(parent, dict) and path[-1] not in _OPTIONAL:
            del parent[path[-1]]
            yield Broken(f"{path} left out", broken)
        broken, parent = _copied(whole, path)
        parent[path[-1]] = _wrong(parent[path[-1]])
        yield Broken(f"{path} = {parent[path[-1]]!r}", broken)


_OPTIONAL = {"medium"}  # of an emptyDir; `test_consistency` has where it must be


def _copied(whole: Any, path: tuple[Any, ...]) -> tuple[Any, Any]:
    """A copy of `whole`, and in it what holds `path`."""
    copied = parent = copy.deepcopy(whole)
    for key in path[:-1]:
        parent = parent[key]
    return copied, parent


def _wrong(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return -1 - value
        case str():
            return value + "!"
        case list():
            return []
        case _:
            return "a text"
