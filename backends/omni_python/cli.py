"""The command `omni`: each module of `omni_python.commands` that has `add_parser` is a subcommand.

`add_parser(subparsers)` declares a subparser of the module's name (`_` written as `-`), and `run(args) -> int` returns
the exit status. A module imports what is slow inside `run`.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

from omni_python import __version__, commands
from omni_python.config.errors import ConfigError
from omni_python.proto.errors import OmniError

USAGE_ERROR = 2
"""Exit status for wrong input, the same that argparse uses."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status. Errors that a user can mend are one message on stderr."""
    modules = _command_modules()
    parser = argparse.ArgumentParser(prog="omni", description="Serve multi-stage omni models on Triton.")
    parser.add_argument("--version", action="version", version=f"omni {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in modules.values():
        module.add_parser(subparsers)
    args = parser.parse_args(argv)
    try:
        status: int = modules[args.command].run(args)
        return status
    except (ConfigError, OmniError, OSError) as error:
        print(f"omni {args.command}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130


def _command_modules() -> dict[str, ModuleType]:
    """The command modules by the names of their subcommands, sorted."""
    found: dict[str, ModuleType] = {}
    for name in sorted(info.name for info in pkgutil.iter_modules(commands.__path__)):
        module = importlib.import_module(f"{commands.__name__}.{name}")
        if hasattr(module, "add_parser"):
            found[name.replace("_", "-")] = module
    return found


if __name__ == "__main__":
    sys.exit(main())
