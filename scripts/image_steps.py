"""The steps of docker/Dockerfile, read as an engine would."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Names and arguments, in order."""
    lines = "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        name, rest = line.split(None, 1)
        yield name, rest.strip()


def stages(text: str) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """By name: what a stage starts from, and its instructions."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    current: list[tuple[str, str]] = []
    for name, rest in instructions(text):
        if name == "FROM":
            origin, _, stage = rest.split()
            current = []
            found[stage] = (origin, current)
        else:
            current.append((name, rest))
    return found


def needed(parts: Mapping[str, tuple[str, list[tuple[str, str]]]], target: str) -> list[str]:
    """The stages that a target is made of, each after those that it needs."""
    if target not in parts:
        return []
    origin, steps = parts[target]
    sources = [origin, *re.findall(r"--from=(\S+)", " ".join(rest for name, rest in steps if name == "COPY"))]
    return list(dict.fromkeys([*(stage for source in sources for stage in needed(parts, source)), target]))
