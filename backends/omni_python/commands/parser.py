"""The command line of `omni`: each module of `omni_python.commands` that has `add_parser` is a subcommand.

`add_parser(subparsers)` declares a subparser of the module's name (`_` written as `-`), and `run(args) -> int` returns
the exit status. A module imports what is slow inside `run`.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from types import ModuleType

from omni_python import __version__, commands
from omni_python.commands.help import HelpFormatter

_EXAMPLES = """\
examples:
  omni quickstart                  # start a server on model_repository/ and see it answer
  omni serve --openai-port 9000    # run a server, with OpenAI's API beside Triton's
  omni chat                        # talk with a running server
  omni validate model_repository   # what its pipelines come to, or what is wrong with them

omni COMMAND --help explains each. Set NO_COLOR for output without colours.
"""


def create_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; the subcommand's name is in `command`."""
    parser = argparse.ArgumentParser(
        prog="omni",
        description="Serve multi-stage omni models on Triton, and talk with them.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"omni {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in command_modules().values():
        module.add_parser(subparsers)
    return parser


def command_modules() -> dict[str, ModuleType]:
    """The command modules by the names of their subcommands, sorted."""
    found: dict[str, ModuleType] = {}
    for name in sorted(info.name for info in pkgutil.iter_modules(commands.__path__)):
        module = importlib.import_module(f"{commands.__name__}.{name}")
        if hasattr(module, "add_parser"):
            found[name.replace("_", "-")] = module
    return found
