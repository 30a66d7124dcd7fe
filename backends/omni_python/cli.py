"""The command `omni`: each module of `omni_python.commands` is a subcommand.

A command module has `add_parser(subparsers)`, which declares a subparser of the module's name (`_` written as `-`), and
`run(args) -> int`, which returns the exit status. It imports what is slow inside `run`.
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
    names = sorted(info.name for info in pkgutil.iter_modules(commands.__path__) if not info.name.startswith("_"))
    return {name.replace("_", "-"): importlib.import_module(f"{commands.__name__}.{name}") for name in names}


if __name__ == "__main__":
    sys.exit(main())
