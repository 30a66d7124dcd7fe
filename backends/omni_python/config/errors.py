"""What is wrong with a configuration: every problem with the field's path, all of them in one exception."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from omni_python.config.fields import is_name


@dataclass(frozen=True)
class Problem:
    """`path` names the field, with stages by their names: `stages.thinker.wait_for[1]`."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """A configuration that cannot be used; `problems` holds everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        return "\n".join([f"{len(self.problems)} problems:", *(f"  {problem}" for problem in self.problems)])


def config_error(path: str, message: str) -> ConfigError:
    """A `ConfigError` with one problem."""
    return ConfigError([Problem(path, message)])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` where a known word looks like `word`, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(words: Iterable[str]) -> str:
    """Words for a message: comma-separated, `none` if there are none."""
    return ", ".join(words) or "none"


def stage_paths(names: list[Any]) -> list[str]:
    """The path of each stage: `stages.<name>`, or `stages[i]` where the name is unusable or not unique."""
    return [
        f"stages.{name}" if isinstance(name, str) and is_name(name) and names.count(name) == 1 else f"stages[{i}]"
        for i, name in enumerate(names)
    ]
