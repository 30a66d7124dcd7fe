"""The arguments of commands that send a question, and the request that they make."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_python.client import Event, OmniClient, RequestOptions


def server_address(text: str) -> str:
    """The type of arguments that name a server; gRPC would go to port 443 where there is none."""
    if ":" not in text:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, such as localhost:8001, not {text!r}")
    return text


def add_server_url(parser: argparse.ArgumentParser, what: str = "the server's gRPC service") -> None:
    """Which server."""
    parser.add_argument(
        "--url",
        type=server_address,
        default="localhost:8001",
        metavar="HOST:PORT",
        help=f"{what} (default: %(default)s)",
    )


def finite_number(text: str) -> float:
    """The type of arguments that are numbers, neither infinite nor NaN, which JSON has not."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}")
    return number


_SAMPLING_FLAGS: tuple[tuple[str, Callable[[str], float], str], ...] = (
    ("temperature", finite_number, "0 always takes the likeliest token"),
    ("top_p", finite_number, "keep the likeliest tokens that make up this probability"),
    ("top_k", int, "keep this many of the likeliest tokens"),
    ("seed", int, "the same seed gives the same text again"),
    ("max_tokens", int, "the text's length at most"),
)


NO_QUESTION = "there is no question: give TEXT, --audio, --image or --video"


class WrongArguments(Exception):
    """The message says what would be right."""


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, and which of its pipelines."""
    add_server_url(parser, "the server's gRPC service, or http://HOST:PORT")
    parser.add_argument("--pipeline", default="qwen3_omni", metavar="NAME", help="(default: %(default)s)")


def add_question_arguments(parser: argparse.ArgumentParser) -> None:
    """Media, and how to answer."""
    for medium in ("audio", "image", "video"):
        parser.add_argument(
            f"--{medium}", action="append", default=[], type=Path, metavar="FILE", help="goes along; may be repeated"
        )
    parser.add_argument("--system", metavar="TEXT", help="a system message ahead of the question")
    parser.add_argument("--voice", metavar="NAME", help="whose voice speaks")
    parser.add_argument("--text-only", action="store_true", help="no speech")
    parser.add_argument(
        "--sampling", metavar="JSON", help="sampling parameters, with an object for each stage that has its own"
    )
    for name, kind, what in _SAMPLING_FLAGS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=what)


def answer_options(args: argparse.Namespace) -> RequestOptions:
    """What the arguments say of the answer. Raises `WrongArguments`."""
    return {
        "voice": args.voice,
        "modalities": ["text"] if args.text_only else [],
        "sampling": _sampling(args),
    }


def ask_stream(client: OmniClient, options: RequestOptions) -> Generator[Event, None, None]:
    """The answer's events. Raises `WrongArguments` where a file cannot be read."""
    try:
        return client.stream(**options)
    except OSError as error:
        raise WrongArguments(f"cannot read {error.filename}: {error.strerror}") from None


def with_question(options: RequestOptions, text: str | None, args: argparse.Namespace) -> RequestOptions:
    """`options` with the question: text and media."""
    system = [{"role": "system", "content": args.system}] if args.system else []
    content = [{"type": "text", "text": text}] if text else []
    return {
        **options,
        "messages": [*system, {"role": "user", "content": content}],
        "audios": args.audio,
        "images": args.image,
        "videos": args.video,
    }


def _sampling(args: argparse.Namespace) -> dict[str, Any]:
    try:
        sampling = json.loads(args.sampling or "{}")
    except ValueError as error:
        raise WrongArguments(f"--sampling: not valid JSON ({error})") from None
    if not isinstance(sampling, dict):
        raise WrongArguments('--sampling: must be a JSON object, for example {"temperature": 0.7}')
    flags = {name: getattr(args, name) for name, _, _ in _SAMPLING_FLAGS}
    return sampling | {name: value for name, value in flags.items() if value is not None}
