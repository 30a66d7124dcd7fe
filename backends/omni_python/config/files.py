"""Pipelines as YAML files: only what differs from the defaults, in a fixed order, read back as the same class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from omni_python.config.errors import ConfigError, Problem, config_error
from omni_python.config.resolve import resolve_dotted
from omni_python.config.schema import PipelineConfig, class_path

_LARGEST = 256 << 10
"""Bytes of a pipeline's file. Those that come with this package have 3 KiB; PyYAML takes minutes for megabytes."""


def save_pipeline(config: PipelineConfig, path: Path) -> None:
    """Write `config` to `path` (its folder must exist).

    Raises `ConfigError` if its class cannot be imported by its dotted path, as one inside a function.
    """
    path.write_text(dump_pipeline(config), encoding="utf-8")


def dump_pipeline(config: PipelineConfig) -> str:
    """The YAML text of `config`."""
    dotted = class_path(type(config))
    if config_class(dotted, "config_cls") is not type(config):
        raise config_error("config_cls", f"{dotted!r} does not lead back to the class of this configuration")
    return yaml.dump(_pipeline_fields(config), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def load_pipeline(path: Path) -> PipelineConfig:
    """Read a pipeline from a YAML file, as the class that its `config_cls` names (`PipelineConfig` if none).

    Raises `ConfigError` for a file that cannot be read, is no YAML mapping, or breaks a rule.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise config_error(str(path), f"cannot be read: {error.strerror}") from None
    if len(data) > _LARGEST:
        raise config_error(str(path), f"is no pipeline: it has more than {_LARGEST >> 10} KiB")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise config_error(str(path), f"cannot be read: it is no text in UTF-8 (line {line})") from None
    return parse_pipeline(text, str(path))


def parse_pipeline(text: str, source: str) -> PipelineConfig:
    """The pipeline of a YAML text; errors as in `load_pipeline`, where `source` stands for the whole."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        problems = list(_key_problems(root, source, set())) if root is not None else []
        if problems:
            raise ConfigError(problems)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise config_error(source, f"is not valid YAML: {_what_is_wrong(error)}") from None
    if not isinstance(data, dict):
        found = "nothing" if data is None else f"a {type(data).__name__}"
        raise config_error(source, f"must be a YAML mapping with model_path and stages, but holds {found}")
    dotted = data.pop("config_cls", None)
    if dotted is None:
        return PipelineConfig(**data)
    if not isinstance(dotted, str):
        raise config_error("config_cls", f"must be the dotted path of a PipelineConfig class, not {dotted!r}")
    return config_class(dotted, "config_cls")(**data)


def _what_is_wrong(error: yaml.YAMLError) -> str:
    """PyYAML's complaint in a line, with where it is."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    said = ", ".join(part for part in (error.context, error.problem) if part)
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {said}" if mark else said


def config_class(dotted: str, where: str) -> type[PipelineConfig]:
    """The pipeline class at a dotted path; raises `ConfigError` with the path `where` for anything else."""
    found = resolve_dotted(dotted, where)
    if not (isinstance(found, type) and issubclass(found, PipelineConfig)):
        raise config_error(where, f"{dotted!r} is not a subclass of PipelineConfig")
    return found


def _pipeline_fields(config: PipelineConfig) -> dict[str, Any]:
    """The fields to write. One is left out only where the base class and the config's own class have it by default."""
    fields: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        base = PipelineConfig.model_fields.get(name)
        if value == field.get_default(call_default_factory=True) and (base is None or value == base.default):
            continue
        fields[name] = _plain(value)
    return fields


def _plain(value: Any) -> Any:
    """Models as mappings without the fields that have their default."""
    if isinstance(value, BaseModel):
        return {
            name: _plain(getattr(value, name))
            for name, field in type(value).model_fields.items()
            if getattr(value, name) != field.default
        }
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


class _Dumper(yaml.SafeDumper):
    """Short lists of plain values in one line; nothing as an alias of something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    flow = all(not isinstance(item, list | dict) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


def _represent_dict(dumper: yaml.SafeDumper, data: dict[str, Any]) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=False)


def _represent_str(dumper: yaml.SafeDumper, data: str) -> yaml.Node:
    # PyYAML leaves some characters that do not print (such as U+0085) as they are unless they stand in quotes.
    style = None if data.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _represent_str)
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(dict, _represent_dict)


def _key_problems(node: yaml.Node, source: str, seen: set[int]) -> Iterator[Problem]:
    """Keys that stand twice in a mapping (YAML silently takes the last), and keys that are no strings."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _key_problems(item, source, seen)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            line = f"{source}, line {key.start_mark.line + 1}"
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                yield Problem(line, f"the key {key.value!r} must be a string; put it in quotes")
            elif key.value in keys:
                yield Problem(line, f"the key {key.value!r} stands twice in the same mapping")
            else:
                keys.add(key.value)
            yield from _key_problems(value, source, seen)
