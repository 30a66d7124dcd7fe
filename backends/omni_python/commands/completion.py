"""`omni completion SHELL`: print what makes a shell complete the command line with Tab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omni_python.commands.help import HelpFormatter

_SHELLS = ("bash", "zsh", "fish")

_EXAMPLES = """\
to install, once:
  omni completion bash > ~/.local/share/bash-completion/completions/omni
  omni completion fish > ~/.config/fish/completions/omni.fish
  omni completion zsh > ~/.zfunc/_omni       # with "fpath+=~/.zfunc" before compinit in ~/.zshrc

for one bash session:
  source <(omni completion bash)
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "completion",
        help="print the completion of this command line for a shell",
        description="Print what makes a shell complete subcommands, options and files of omni with Tab.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=", ".join(_SHELLS))
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from omni_python.commands.parser import create_parser

    parser = create_parser()
    for action in _actions(parser):
        if action.type is Path:
            action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments, those of the subcommands too."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _actions(subparser)
