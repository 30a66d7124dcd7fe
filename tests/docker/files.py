"""The files of docker/ as data, and the schemas that they are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DOCKER = Path(__file__).resolve().parents[2] / "docker"
SCHEMAS = Path(__file__).parent / "schemas"

KSERVE = DOCKER / "kserve"
RUNTIME = KSERVE / "serving-runtime.yaml"
CLAIM = KSERVE / "models-claim.yaml"
SERVICES = sorted(set(KSERVE.glob("*.yaml")) - {RUNTIME, CLAIM})
COMPOSE = DOCKER / "compose.yaml"


def document(path: Path) -> Any:
    """The only document of a YAML file."""
    return yaml.safe_load(path.read_text("utf-8"))


def container() -> dict[str, Any]:
    """The container of the ServingRuntime."""
    (only,) = document(RUNTIME)["spec"]["containers"]
    return only


def schema(path: Path) -> Any:
    """The schema of a manifest, in which every object must have all the properties that are named, and no others."""
    name = path.stem if path in (RUNTIME, CLAIM, COMPOSE) else "inference-service"
    return _closed(document(SCHEMAS / f"{name}.yaml"))


def _closed(part: Any) -> Any:
    if isinstance(part, list):
        return [_closed(item) for item in part]
    if not isinstance(part, dict):
        return part
    closed = {key: _closed(value) for key, value in part.items()}
    if isinstance(part.get("properties"), dict):
        closed["type"] = "object"
        closed["additionalProperties"] = False
        closed.setdefault("required", sorted(part["properties"]))
    return closed


def instructions(stage: str = "") -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, in order; those of one stage, or of all."""
    lines = (DOCKER / "Dockerfile").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))
    parts = [line.split(None, 1) for line in text.replace("\\\n", " ").splitlines()]
    result = []
    current = ""
    for name, rest in parts:
        if name == "FROM":
            current = rest.split(" AS ")[1]
        if stage in ("", current):
            result.append((name, rest))
    return result


def execution(name: str, stage: str = "runtime") -> list[str]:
    """The command of an ENTRYPOINT, CMD or HEALTHCHECK in its JSON form."""
    (rest,) = (rest for instruction, rest in instructions(stage) if instruction == name)
    command: list[str] = yaml.safe_load(rest[rest.index("[") :])
    return command


def options(arguments: list[str]) -> dict[str, str]:
    """`--name=value` arguments by their names."""
    pairs = {}
    for argument in arguments:
        name, value = argument.removeprefix("--").split("=", 1)
        assert name not in pairs, f"{name} is given twice"
        pairs[name] = value
    return pairs
