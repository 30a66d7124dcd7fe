"""`omni chat`: ask a running server one question, or talk with it."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python.commands.answering import AnswerView, answer_as_json, print_timings
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

if TYPE_CHECKING:
    from omni_python.client import OmniClient, RequestOptions

_DESCRIPTION = """\
Ask a running server one question: its text is printed as it comes, its speech written to a WAV file. Without TEXT and
media, on a terminal, hold a conversation (/help there lists its commands; Ctrl-C stops an answer, Ctrl-D leaves).
Without TEXT and media, elsewhere, the question is read from the standard input.
"""

_EXAMPLES = """\
examples:
  omni chat                                             # a conversation
  omni chat "What is the capital of France?" --text-only
  omni chat --audio question.wav --image photo.jpg --out answer.wav
  omni chat "Where does the time go?" --trace
  omni chat "Tell me a story." --temperature 0.7 --sampling '{"talker": {"temperature": 0.9, "seed": 1}}'
  echo "Say hi." | omni chat --json | jq -r .text

exit status: 0 answered, 1 the server is not there or refuses, 2 wrong arguments, 130 stopped by Ctrl-C
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "chat",
        help="ask a running server, with text, sound, images and videos",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the question")
    add_server_arguments(parser)
    add_question_arguments(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("answer.wav"),
        metavar="FILE",
        help="where the (last) answer's speech goes (default: %(default)s)",
    )
    parser.add_argument(
        "--shared-memory",
        choices=("system", "cuda"),
        help="hand large files over in memory that the server, on this host, maps",
    )
    parser.add_argument("--trace", action="store_true", help="draw what each stage did when, below the answer")
    parser.add_argument("--json", action="store_true", help="print the whole answer as one JSON object, for scripts")
    return parser


def run(args: argparse.Namespace) -> int:
    """Ask; 1 where the server is not there or refuses, 2 for wrong arguments."""
    from omni_python.client import OmniClient, OmniClientError

    try:
        options = _options(args)
        text = args.text
        if args.shared_memory and args.url.startswith("http"):
            raise WrongArguments("--shared-memory needs the server's gRPC service: --url HOST:PORT without http://")
        with OmniClient(args.url, args.pipeline, shared_memory=args.shared_memory) as client:
            if not (args.audio or args.image or args.video):
                if text is None and sys.stdin.isatty():
                    return _converse(client, args, options)
                text = sys.stdin.read() if text is None else text
                if not text.strip():
                    raise WrongArguments(NO_QUESTION)
            _ask(client, with_question(options, text, args), args)
            return 0
    except WrongArguments as error:
        print(f"omni chat: {error}", file=sys.stderr)
        return 2
    except OmniClientError as error:
        print(f"omni chat: {error}", file=sys.stderr)
        return 1


def _options(args: argparse.Namespace) -> RequestOptions:
    """What all questions have in common."""
    if not args.out.absolute().parent.is_dir():
        raise WrongArguments(f"--out: there is no folder {args.out.parent}")
    if args.out.is_dir():
        raise WrongArguments(f"--out: {args.out} is a folder; name the file to write")
    return {**answer_options(args), "trace": True} if args.trace else answer_options(args)


def _ask(client: OmniClient, options: RequestOptions, args: argparse.Namespace) -> None:
    """Print the answer and what it took, and write its speech."""
    from omni_python.client import Answer

    with closing(ask_stream(client, options)) as events:
        answer = Answer.collect(events) if args.json else AnswerView(sys.stdout).collect(events)
    speech = args.out if len(answer.audio) else None
    if speech is not None:
        answer.save_wav(speech)
    if args.json:
        print(json.dumps(answer_as_json(answer, speech), ensure_ascii=False))
    else:
        print_timings(answer, speech)


def _converse(client: OmniClient, args: argparse.Namespace, options: RequestOptions) -> int:
    from omni_python.commands.conversation import Conversation
    from omni_python.commands.conversing import converse

    if args.json:
        raise WrongArguments(
            "--json prints one answer: give TEXT, --audio, --image or --video, or pipe the question in"
        )
    talk = Conversation(client.info(), args.system, args.voice, not args.text_only)
    return converse(client, talk, options, args.out)
