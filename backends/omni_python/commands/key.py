"""`omni key FILE`: make the key that the processes of a pipeline on several hosts prove to each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from omni_python.commands.help import HelpFormatter

_DESCRIPTION = """\
Write a new key, which nobody but you may read. A pipeline on several hosts names it in endpoints.key_file, and each of
its hosts has the same one there: who knows it can give the pipeline orders.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "key",
        help="make the key for a pipeline on several hosts",
        description=_DESCRIPTION,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="where to write it; must not be there yet")
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the key's file."""
    from omni_python.control.curve import make_key

    make_key(args.file)
    return 0
