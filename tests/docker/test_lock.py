"""What the image installs fits its Python, 3.12, by what the packages say themselves: no index is asked.

`scripts/check_image` asks one, with uv: then there is also a wheel of each.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.docker.files import DOCKER, instructions

ROOT = DOCKER.parent
IMAGE = {"python_version": "3.12", "python_full_version": "3.12.3", "platform_machine": "x86_64"}
BY_TORCH = re.compile(r"cuda-.*|nvidia-.*|triton")
"""CUDA, in the versions that torch's own requirements say; its builds for CPUs want none of it."""


def pinned() -> dict[str, Version]:
    lines = (ROOT / "scripts" / "constraints.txt").read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def wanted(requirements: list[str], extras: set[str]) -> Iterator[Requirement]:
    """Those that Python 3.12 on Linux needs."""
    image = {name: str(value) for name, value in default_environment().items()} | IMAGE
    for text in requirements:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate(image | {"extra": extra}) for extra in (extras or {""})):
            yield requirement


def of_the_project(extras: list[str]) -> list[str]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]


def reached(extras: list[str]) -> dict[str, list[Requirement]]:
    """All that is needed, by way of others or not, with everything that is asked of each."""
    found: dict[str, list[Requirement]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    left = list(wanted(of_the_project(extras), set()))
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if BY_TORCH.fullmatch(name):
            continue
        found.setdefault(name, []).append(requirement)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        try:
            left += wanted(metadata.requires(name) or [], requirement.extras)
        except metadata.PackageNotFoundError:  # which Python 3.11 does not need
            assert sys.version_info < (3, 12), name
    return found


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_all_that_the_image_installs_is_pinned_and_fits(target: str) -> None:
    commands = " ".join(rest for name, rest in instructions(f"environment-{target}") if name == "RUN")
    (extras,) = re.findall(r"pip install '\.\[([a-z,]+)\]'", commands)
    pins, needed = pinned(), reached(extras.split(","))
    assert {"torch", "grpcio", "starlette", "setuptools"} <= set(needed) and len(needed) > 60
    assert needed.keys() - pins.keys() == set()
    unfit = [
        f"{requirement} is wanted, {pins[name]} is pinned"
        for name, requirements in needed.items()
        for requirement in requirements
        if pins[name] not in requirement.specifier
    ]
    assert unfit == []


def test_what_the_image_installs_runs_on_its_python() -> None:
    for name in reached(["http", "otel", "vad", "nixl"]):
        says = metadata.metadata(name)
        if "Requires-Python" in says:
            assert IMAGE["python_full_version"] in SpecifierSet(says["Requires-Python"]), name
        installed, pin = Version(metadata.version(name)), pinned()[name]
        assert installed.public == pin.public, name


def test_a_version_that_does_not_fit_is_found() -> None:
    """A requirement for Python 3.12 alone counts, one for 3.11 does not."""
    texts = ["numpy>=2; python_version >= '3.12'", "numpy<1; python_version < '3.12'", "rich>=1; extra == 'x'"]
    assert [str(one.specifier) for one in wanted(texts, set())] == [">=2"]
    assert [one.name for one in wanted(texts, {"x"})] == ["numpy", "rich"]
