"""A checkpoint's chat template: conversations to text, as transformers renders them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omni_python.models.loading.checkpoint import CheckpointError, load_json
from omni_python.proto.errors import InvalidArgument


class ChatTemplate:
    """`special` are the tokenizer's special tokens by name, which a template may use."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CheckpointError(f"the checkpoint's chat template cannot be used: {error}") from error
        self._special = dict(special)

    def render(self, turns: Sequence[Mapping[str, Any]]) -> str:
        """The conversation up to where the answer begins. Raises `InvalidArgument` where the template takes it not."""
        try:
            return self._template.render(
                messages=turns, tools=None, documents=None, add_generation_prompt=True, **self._special
            )
        except TemplateError as error:
            raise InvalidArgument(f"the model's chat template refuses the messages: {error}") from error


def load_template(model_path: str | Path) -> ChatTemplate:
    """Of chat_template.jinja, else tokenizer_config.json, else chat_template.json (older checkpoints)."""
    directory = Path(model_path)
    config = load_json(directory, "tokenizer_config.json") if (directory / "tokenizer_config.json").exists() else {}
    special = {name: _text(value) for name, value in config.items() if name.endswith("_token") and value is not None}
    if (directory / "chat_template.jinja").exists():
        source = (directory / "chat_template.jinja").read_text("utf-8")
    elif config.get("chat_template"):
        source = _default(config["chat_template"])
    elif (directory / "chat_template.json").exists():
        source = _default(load_json(directory, "chat_template.json")["chat_template"])
    else:
        raise CheckpointError(f"checkpoint {str(directory)!r} has no chat template (chat_template.jinja)")
    return ChatTemplate(source, special)


def _default(given: str | list[dict[str, str]]) -> str:
    """A template, or the one that is named "default" of several."""
    if isinstance(given, str):
        return given
    return {template["name"]: template["template"] for template in given}["default"]


def _text(token: Any) -> str:
    """A token, which may be written as a table."""
    return str(token["content"] if isinstance(token, dict) else token)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Jinja's own escapes characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
