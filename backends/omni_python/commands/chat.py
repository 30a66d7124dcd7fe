"""`omni chat`: ask a running server one question, or talk with it."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python.commands.printing import dim, figures, printed

if TYPE_CHECKING:
    from omni_python.client import Answer, OmniClient, RequestOptions

_DESCRIPTION = """\
Ask a running server one question: its text is printed as it comes, its speech written to a WAV file. Without TEXT and
media, on a terminal, hold a conversation: Ctrl-C drops the running answer and its question, Ctrl-D ends. Without TEXT
and media, elsewhere, the question is read from the standard input.
"""

_EXAMPLES = """\
examples:
  omni chat "What is the capital of France?" --text-only
  omni chat --audio question.wav --image photo.jpg --out answer.wav
  omni chat "Tell me a story." --temperature 0.7 --sampling '{"talker": {"temperature": 0.9, "seed": 1}}'
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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the question")
    parser.add_argument(
        "--url", default="localhost:8001", metavar="HOST:PORT", help="the server's gRPC port (default: %(default)s)"
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
    return parser


def run(args: argparse.Namespace) -> int:
    """Ask; 1 where the server is not there or refuses, 2 for wrong arguments."""
    from omni_python.client import OmniClient, OmniClientError

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        options = _options(args)
        text = args.text
        if not (args.audio or args.image or args.video):
            if text is None and sys.stdin.isatty():
                with OmniClient(args.url, args.pipeline) as client:
                    return _converse(client, args, options)
            text = sys.stdin.read() if text is None else text
            if not text.strip():
                raise _Usage("there is no question: give TEXT, --audio, --image or --video")
        with OmniClient(args.url, args.pipeline) as client:
            _ask(client, _with_question(options, text, args), args.out)
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


def _system(args: argparse.Namespace) -> list[dict[str, Any]]:
    return [{"role": "system", "content": args.system}] if args.system else []


def _with_question(options: RequestOptions, text: str | None, args: argparse.Namespace) -> RequestOptions:
    content = [{"type": "text", "text": text}] if text else []
    return {
        **options,
        "messages": [*_system(args), {"role": "user", "content": content}],
        "audios": args.audio,
        "images": args.image,
        "videos": args.video,
    }


def _ask(client: OmniClient, options: RequestOptions, out: Path) -> Answer:
    """Print the answer and what it took, and write its speech."""
    from omni_python.client import Answer

    try:
        stream = client.stream(**options)
    except OSError as error:
        raise _Usage(f"cannot read {error.filename}: {error.strerror}") from None
    with closing(stream) as events:
        answer = Answer.collect(printed(events))
    took = figures(answer)
    if len(answer.audio):
        answer.save_wav(out)
        took["speech"] = str(out)
    print(dim("  ".join(f"{label}: {value}" for label, value in took.items()), sys.stderr), file=sys.stderr)
    return answer


def _converse(client: OmniClient, args: argparse.Namespace, options: RequestOptions) -> int:
    """Question after question, each with all that was said before, until Ctrl-D."""
    import readline  # noqa: F401 - gives input() its line editing

    from omni_python.client import RequestFailed, UnknownPipeline

    said = _system(args)
    while True:
        try:
            text = input("> ").strip()
            if not text:
                continue
            question = {"role": "user", "content": text}
            answer = _ask(client, {**options, "messages": [*said, question]}, args.out)
            said += [question, {"role": "assistant", "content": answer.text}]
        except UnknownPipeline:
            raise
        except RequestFailed as error:
            print(f"omni chat: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return 0
