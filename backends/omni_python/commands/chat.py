"""`omni chat`: ask a running server one question, or talk with it."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python.commands.answering import AnswerView, answer_as_json, print_timings
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
  omni chat "Tell me a story." --temperature 0.7 --sampling '{"talker": {"temperature": 0.9, "seed": 1}}'
  echo "Say hi." | omni chat --json | jq -r .text

exit status: 0 answered, 1 the server is not there or refuses, 2 wrong arguments, 130 stopped by Ctrl-C
"""

_SAMPLING_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("temperature", float, "0 always takes the likeliest token"),
    ("top_p", float, "keep the likeliest tokens that make up this probability"),
    ("top_k", int, "keep this many of the likeliest tokens"),
    ("seed", int, "the same seed gives the same text again"),
    ("max_tokens", int, "the text's length at most"),
)


class _Usage(Exception):
    """Wrong arguments; the message says what would be right."""


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
    parser.add_argument(
        "--url",
        default="localhost:8001",
        metavar="HOST:PORT",
        help="the server's gRPC service, or http://HOST:PORT (default: %(default)s)",
    )
    parser.add_argument("--pipeline", default="qwen3_omni", metavar="NAME", help="(default: %(default)s)")
    for medium in ("audio", "image", "video"):
        parser.add_argument(
            f"--{medium}", action="append", default=[], type=Path, metavar="FILE", help="goes along; may be repeated"
        )
    parser.add_argument("--system", metavar="TEXT", help="a system message ahead of the question")
    parser.add_argument("--voice", metavar="NAME", help="whose voice speaks")
    parser.add_argument("--text-only", action="store_true", help="no speech")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("answer.wav"),
        metavar="FILE",
        help="where the (last) answer's speech goes (default: %(default)s)",
    )
    parser.add_argument(
        "--sampling", metavar="JSON", help="sampling parameters, with an object for each stage that has its own"
    )
    for name, kind, what in _SAMPLING_FLAGS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=what)
    parser.add_argument(
        "--shared-memory",
        choices=("system", "cuda"),
        help="hand large files over in memory that the server, on this host, maps",
    )
    parser.add_argument("--json", action="store_true", help="print the whole answer as one JSON object, for scripts")
    return parser


def run(args: argparse.Namespace) -> int:
    """Ask; 1 where the server is not there or refuses, 2 for wrong arguments."""
    from omni_python.client import OmniClient, OmniClientError

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        options = _options(args)
        text = args.text
        if args.shared_memory and args.url.startswith("http"):
            raise _Usage("--shared-memory needs the server's gRPC service: --url HOST:PORT without http://")
        with OmniClient(args.url, args.pipeline, shared_memory=args.shared_memory) as client:
            if not (args.audio or args.image or args.video):
                if text is None and sys.stdin.isatty():
                    return _converse(client, args, options)
                text = sys.stdin.read() if text is None else text
                if not text.strip():
                    raise _Usage("there is no question: give TEXT, --audio, --image or --video")
            _ask(client, _with_question(options, text, args), args)
            return 0
    except _Usage as error:
        print(f"omni chat: {error}", file=sys.stderr)
        return 2
    except OmniClientError as error:
        print(f"omni chat: {error}", file=sys.stderr)
        return 1


def _options(args: argparse.Namespace) -> RequestOptions:
    """What all questions have in common."""
    if not args.out.absolute().parent.is_dir():
        raise _Usage(f"--out: there is no folder {args.out.parent}")
    return {
        "voice": args.voice,
        "modalities": ["text"] if args.text_only else [],
        "sampling": _sampling(args),
    }


def _sampling(args: argparse.Namespace) -> dict[str, Any]:
    try:
        sampling = json.loads(args.sampling or "{}")
    except ValueError as error:
        raise _Usage(f"--sampling: not valid JSON ({error})") from None
    if not isinstance(sampling, dict):
        raise _Usage('--sampling: must be a JSON object, for example {"temperature": 0.7}')
    flags = {name: getattr(args, name) for name, _, _ in _SAMPLING_FLAGS}
    return sampling | {name: value for name, value in flags.items() if value is not None}


def _with_question(options: RequestOptions, text: str | None, args: argparse.Namespace) -> RequestOptions:
    system = [{"role": "system", "content": args.system}] if args.system else []
    content = [{"type": "text", "text": text}] if text else []
    return {
        **options,
        "messages": [*system, {"role": "user", "content": content}],
        "audios": args.audio,
        "images": args.image,
        "videos": args.video,
    }


def _ask(client: OmniClient, options: RequestOptions, args: argparse.Namespace) -> None:
    """Print the answer and what it took, and write its speech."""
    from omni_python.client import Answer

    try:
        stream = client.stream(**options)
    except OSError as error:
        raise _Usage(f"cannot read {error.filename}: {error.strerror}") from None
    with closing(stream) as events:
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
        raise _Usage("--json prints one answer: give TEXT, --audio, --image or --video, or pipe the question in")
    talk = Conversation(client.info(), args.system, args.voice, not args.text_only)
    return converse(client, talk, options, args.out)
