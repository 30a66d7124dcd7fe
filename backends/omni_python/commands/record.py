"""`omni record`: ask a running server, and keep what went through one of its stages."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python.commands.asking import (
    NO_QUESTION,
    WrongArguments,
    add_question_arguments,
    add_server_arguments,
    answer_options,
    ask_stream,
    with_question,
)
from omni_python.commands.help import HelpFormatter
from omni_python.proto.recording import DRAFT

if TYPE_CHECKING:
    from omni_python.client import OmniClient, RequestOptions

PATIENCE = 10.0
"""Seconds after the answer's end until the file is there: the stage writes it when it is done with the request."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "record",
        help="keep a stage's input and output for a request",
        description="""\
Ask a running server a question, and keep in a file what one of its stages gets and what it makes of it, also where the
request fails. `omni replay` runs the file through the stage again. The server must have been started with `omni serve
--record-dir DIR`; the file holds what the user sent, or what was made of it.""",
        epilog="""\
examples:
  omni record talker_ar "Read this to me."
  omni record audio_encoder --audio question.wav --out bug.omnirec

exit status: 0 recorded, 1 the server is not there or refuses, or the stage was not reached, 2 wrong arguments""",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("stage", metavar="STAGE", help="whose input is kept")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the question")
    add_server_arguments(parser)
    add_question_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the recording goes (default: STAGE.omnirec)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Ask, and fetch the recording; 1 where there is none."""
    from omni_python.client import OmniClient, OmniClientError

    try:
        if args.text is None and not (args.audio or args.image or args.video):
            raise WrongArguments(NO_QUESTION)
        options = answer_options(args)
        options["sampling"] = {**(options.get("sampling") or {}), "record": args.stage}
        out = args.out or Path(f"{args.stage}.omnirec")
        with OmniClient(args.url, args.pipeline) as client:
            source = _ask(client, with_question(options, args.text, args))
    except WrongArguments as error:
        print(f"omni record: {error}", file=sys.stderr)
        return 2
    except OmniClientError as error:
        print(f"omni record: {error}", file=sys.stderr)
        return 1
    return _fetch(source, args.stage, out)


def _ask(client: OmniClient, options: RequestOptions) -> Path:
    """Where the server writes the recording. A request that fails after that is one to be recorded all the more."""
    from omni_python.client import Recorded, RequestFailed

    source = None
    try:
        with closing(ask_stream(client, options)) as events:
            for event in events:
                if isinstance(event, Recorded):
                    source = Path(event.paths[0])
    except RequestFailed as error:
        if source is None:
            raise
        print(f"omni record: the request failed: {error}", file=sys.stderr)
    if source is None:
        raise RequestFailed("the server did not say where it records; is it of an older version?")
    return source


def _fetch(source: Path, stage: str, out: Path) -> int:
    if not source.parent.is_dir():
        print(f"the recording is on the server's host: {source}")
        return 0
    end = time.monotonic() + PATIENCE
    while not source.exists():
        if time.monotonic() > end:
            draft = source.with_name(source.name + DRAFT)
            why = f"its process has left {draft}" if draft.exists() else "the request did not reach it"
            print(f"omni record: stage {stage} has not ended the recording: {why}", file=sys.stderr)
            return 1
        time.sleep(0.05)
    shutil.copyfile(source, out)
    out.chmod(0o600)
    print(f"{out}: {out.stat().st_size / 1024:.1f} KiB")
    return 0
