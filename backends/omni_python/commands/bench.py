"""`omni bench`: put a load on a running server and measure what clients wait for."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python import __version__
from omni_python.commands.asking import add_server_url
from omni_python.commands.help import HelpFormatter
from omni_python.proto.errors import OmniError

if TYPE_CHECKING:
    from omni_python.bench.dataset import Question
    from omni_python.bench.load import Load, Plan
    from omni_python.bench.record import RequestRecord
    from omni_python.bench.slo import Objective
    from omni_python.bench.summary import Summary
    from omni_python.client import RequestOptions

_DESCRIPTION = """\
Put a load on a running server over gRPC, and measure what its clients wait for: the first text, the first audio, the
gaps between pieces, and the silence that one would hear who plays the speech as it comes. Where the server runs on this
machine, CPU and GPU time are measured too.

Closed loops (--concurrency) ask again as soon as they were answered, or 0.1 s after an error. Open loops (--rate) have
Poisson arrivals and show what happens when more is asked than can be served. Ctrl-C ends the load of the moment; what
was measured is kept.
"""

_EXAMPLES = """\
examples:
  omni bench                                            # 1, 2, 4 and 8 requests at once
  omni bench --concurrency 1,8,16 --slo ttfa=300ms,rtf=1 --out results
  omni bench --rate 2,4,8 --seconds 60 --data requests.jsonl
  omni bench --requests 16 --text-only --sampling '{"max_tokens": 32}' --json

A line of --data is a JSON object with arguments of OmniClient.stream, and files by their paths, relative to the data's:
  {"text": "What do you hear?", "audios": ["question.wav"], "voice": "chelsie"}
keys: text, messages, audios, images, videos, modalities, voice, sampling

--out writes requests.jsonl (every request, each piece with its time), summary.json, concurrency.png and rate.png.

exit status: 0 measured, 1 the server is not there or no request was answered, 2 wrong arguments, 130 stopped by Ctrl-C
"""

_DEFAULT_LEVELS = "1,2,4,8"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        help="measure a running server under load",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    add_server_url(parser)
    parser.add_argument("--pipeline", default="qwen3_omni", metavar="NAME", help="(default: %(default)s)")
    parser.add_argument(
        "--concurrency", metavar="N,...", help=f"closed loops of so many (default without --rate: {_DEFAULT_LEVELS})"
    )
    parser.add_argument("--rate", metavar="R,...", help="open loops of so many requests a second")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of each load (default: %(default)s)")
    parser.add_argument("--requests", type=int, metavar="N", help="so many in each load, instead of --seconds")
    parser.add_argument(
        "--warm-up",
        type=int,
        metavar="N",
        help="requests ahead of each load that are not counted (default: twice its concurrency, or two seconds of it)",
    )
    parser.add_argument("--data", type=Path, metavar="FILE", help="what to ask (default: a few questions)")
    parser.add_argument("--text-only", action="store_true", help="no speech")
    parser.add_argument("--voice", metavar="NAME", help="whose voice speaks, in place of the data's")
    parser.add_argument("--sampling", metavar="JSON", help="sampling parameters, in place of the data's")
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="NAME=LIMIT",
        help="count requests that keep to it: ttft, ttfa, gap, total, underrun (ms or s), rtf; may be repeated",
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="for a request to end (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of questions and of arrivals")
    parser.add_argument("--processes", type=int, metavar="N", help="that send (default: one for every 8 cores)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write requests, figures and plots there")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object instead of tables")
    return parser


def run(args: argparse.Namespace) -> int:
    """Measure; raises `OmniError` for wrong arguments."""
    try:
        import matplotlib  # noqa: F401
        import psutil  # noqa: F401
        import pynvml  # noqa: F401
    except ImportError as error:
        raise OmniError(f"it needs the extra bench of this package ({error})") from None
    from omni_python.bench.slo import parse_objectives
    from omni_python.client import OmniClient, OmniClientError

    loads = _loads(args)
    objectives = parse_objectives(args.slo)
    questions = _questions(args)
    if args.url.startswith("http"):
        raise OmniError("--url: the load goes over gRPC: HOST:PORT without http://")
    try:
        with OmniClient(args.url, args.pipeline) as client:
            client.info()
    except OmniClientError as error:
        print(f"omni bench: {error}", file=sys.stderr)
        return 1
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    summaries, messages = _measure(args, loads, questions, objectives)
    _report(args, summaries)
    for kind, message in messages.items():
        print(f"omni bench: the first {kind}: {message}", file=sys.stderr)
    if any(summary.interrupted for summary in summaries):
        return 130
    return 0 if any(summary.answered for summary in summaries) else 1


def _loads(args: argparse.Namespace) -> list[Load]:
    from omni_python.bench.load import ClosedLoop, OpenLoop

    concurrency = args.concurrency or ("" if args.rate else _DEFAULT_LEVELS)
    loads: list[Load] = [ClosedLoop(int(level)) for level in _levels("--concurrency", concurrency, int)]
    loads += [OpenLoop(level) for level in _levels("--rate", args.rate or "", float)]
    for name in ("seconds", "requests", "timeout", "processes"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise OmniError(f"--{name}: must be more than 0")
    if args.warm_up is not None and args.warm_up < 0:
        raise OmniError("--warm-up: must not be negative")
    return loads


def _levels(flag: str, text: str, kind: type[int] | type[float]) -> list[float]:
    try:
        levels = [kind(part) for part in text.split(",") if text]
    except ValueError:
        levels = [0]
    if any(not 0 < level < 1e6 for level in levels):
        raise OmniError(f"{flag}: must be numbers above 0 with commas between them, such as 1,4,16; not {text!r}")
    return levels


def _questions(args: argparse.Namespace) -> list[Question]:
    from omni_python.bench.dataset import QUESTIONS, load_questions, with_options

    try:
        sampling = json.loads(args.sampling or "{}")
    except ValueError as error:
        raise OmniError(f"--sampling: not valid JSON ({error})") from None
    if not isinstance(sampling, dict):
        raise OmniError('--sampling: must be a JSON object, for example {"max_tokens": 64}')
    options: RequestOptions = {"sampling": sampling}
    if args.voice is not None:
        options["voice"] = args.voice
    if args.text_only:
        options["modalities"] = ["text"]
    return with_options(load_questions(args.data or QUESTIONS), options)


def _measure(
    args: argparse.Namespace, loads: Sequence[Load], questions: Sequence[Question], objectives: Sequence[Objective]
) -> tuple[list[Summary], dict[str, str]]:
    """The figures of all loads, or of those until Ctrl-C, and the first message of each kind of error."""
    import msgspec

    from omni_python.bench.generator import LoadGenerator
    from omni_python.bench.measure import measure
    from omni_python.commands.progress import working

    plan = _plan(args)
    processes = args.processes or max(1, (os.cpu_count() or 1) // 8)
    encode = msgspec.json.Encoder().encode
    summaries = []
    messages: dict[str, str] = {}

    def ended(one: RequestRecord) -> None:
        if file is not None:
            file.write(encode(one) + b"\n")
        if one.error:
            messages.setdefault(one.error, one.message)

    with contextlib.ExitStack() as stack:
        file = stack.enter_context((args.out / "requests.jsonl").open("wb")) if args.out else None
        generator = stack.enter_context(LoadGenerator(args.url, args.pipeline, questions, processes))
        for load in loads:
            with working(str(load)):
                summary = measure(generator, load, plan, objectives, ended)
            summaries.append(summary)
            if summary.interrupted:
                break
    return summaries, messages


def _plan(args: argparse.Namespace) -> Plan:
    from omni_python.bench.load import Plan

    return Plan(args.seconds, args.requests, args.warm_up, args.timeout, args.seed)


def _report(args: argparse.Namespace, summaries: list[Summary]) -> None:
    import msgspec
    from rich.console import Console

    from omni_python.bench.plots import save_plots
    from omni_python.bench.tables import print_tables

    about = {
        "pipeline": args.pipeline,
        "version": __version__,
        "data": str(args.data or "built in"),
        "plan": _plan(args),
    }
    figures = msgspec.json.format(msgspec.json.encode({**about, "loads": summaries}), indent=1)
    if args.json:
        print(figures.decode())
    else:
        print_tables(summaries, Console())
    if args.out is not None:
        (args.out / "summary.json").write_bytes(figures)
        paths = save_plots(summaries, args.out, f"omni bench: {args.pipeline}")
        names = ", ".join(["requests.jsonl", "summary.json", *(path.name for path in paths)])
        print(f"written to {args.out}: {names}", file=sys.stderr)
