"""`omni trace`: where a request's time went."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python.commands.asking import add_server_arguments
from omni_python.commands.help import HelpFormatter
from omni_python.commands.printing import drawn

if TYPE_CHECKING:
    from rich.console import Console

    from omni_python.proto.trace import Trace

_SVG_COLUMNS = 140


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "trace",
        help="show where a request's time went",
        description="""\
Draw what each stage of a running server did with a request, and when: a lane for each, and the hops between them. A
request is traced when it asks for it (`omni chat --trace`, the parameter `trace`), when its caller's W3C context
(traceparent) is sampled, or by chance (`trace: {sample: 0.01}` in the pipeline). The server keeps the last ones
(`trace: {keep: 64}`).""",
        epilog="""\
examples:
  omni trace --last
  omni trace 4bf92f3577b34da6a3ce929d0e0e4736        # the W3C trace id, or the server's own id for the request
  omni trace --last --perfetto request.json          # open it at https://ui.perfetto.dev
  omni trace --last --json | jq '.lanes[].stage'

exit status: 0 shown, 1 the server is not there or has no such trace, 2 wrong arguments""",
        formatter_class=HelpFormatter,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", metavar="ID", help="the request's W3C trace id, or the server's own id for it")
    which.add_argument("--last", action="store_true", help="the traced request that ended last")
    add_server_arguments(parser)
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write a file for Perfetto instead of drawing")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the drawing as a picture")
    parser.add_argument("--json", action="store_true", help="print the trace as one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Show or write the trace; 1 where there is none."""
    from omni_python.client import NotFound, OmniClient, OmniClientError
    from omni_python.commands.perfetto import perfetto
    from omni_python.proto.trace import encode_trace

    try:
        with OmniClient(args.url, args.pipeline) as client:
            trace = client.trace(args.id or "")
    except OmniClientError as error:
        hint = "; omni chat --trace does" if args.last and isinstance(error, NotFound) else ""
        print(f"omni trace: {error}{hint}", file=sys.stderr)
        return 1
    if args.perfetto is not None:
        args.perfetto.write_text(perfetto(trace), encoding="utf-8")
    if args.svg is not None:
        _picture(trace, args.svg)
    if args.json:
        print(encode_trace(trace).decode())
    elif args.perfetto is None and args.svg is None:
        from rich.console import Console

        draw(trace, Console(soft_wrap=True))
    return 0


def draw(trace: Trace, console: Console) -> None:
    """Draw the trace on a console, as wide as it is, in characters that it can show."""
    from omni_python.commands.timeline import timeline

    for line in timeline(trace, console.width):
        line.plain = drawn(line.plain, console.encoding)
        console.print(line, overflow="ignore", no_wrap=True, crop=False)


def _picture(trace: Trace, path: Path) -> None:
    import io

    from rich.console import Console

    console = Console(record=True, width=_SVG_COLUMNS, file=io.StringIO(), color_system="truecolor")
    draw(trace, console)
    console.save_svg(str(path), title="omni trace")
