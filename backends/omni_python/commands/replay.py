"""`omni replay`: run a recording through its stage once more, and compare."""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python.commands.asking import add_server_url
from omni_python.commands.help import HelpFormatter
from omni_python.proto.errors import InvalidArgument

if TYPE_CHECKING:
    from omni_python.proto.recording import Recording

SHOWN = 20
"""Differences that are printed."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "replay",
        help="run a recorded stage once more, and compare",
        description="""\
Send the input in FILE, which `omni record` has written, to that stage's model alone, and compare what comes out with
what was recorded: integers and text must be equal, floating-point numbers within the tolerance. The server must have
been started with `omni serve --allow-replay`.""",
        epilog="""\
examples:
  omni replay talker_ar.omnirec
  omni replay talker_ar.omnirec --url gpu-box:8001 --atol 0.01

exit status: 0 equal, 1 different, or the server is not there or refuses, 2 wrong arguments or no recording""",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the recording")
    add_server_url(parser)
    parser.add_argument(
        "--model", metavar="NAME", help="the Triton model that has the stage (default: the one that was recorded)"
    )
    parser.add_argument(
        "--rtol", type=float, default=1e-3, metavar="X", help="relative tolerance (default: %(default)s)"
    )
    parser.add_argument(
        "--atol", type=float, default=1e-4, metavar="X", help="absolute tolerance (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, for scripts")
    return parser


def run(args: argparse.Namespace) -> int:
    """Replay and compare; 1 where something differs or the server does not do it."""
    from omni_python.client import OmniClientError, replay
    from omni_python.commands.comparing import Tolerance, differences
    from omni_python.proto.recording import MAX_BYTES, decode_recording

    for name in ("rtol", "atol"):
        if not getattr(args, name) >= 0:
            raise InvalidArgument(f"--{name}: must be 0 or more, not {getattr(args, name):g}")
    with args.file.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    recording = decode_recording(data)
    model = args.model or recording.header.model
    start = time.monotonic()
    try:
        again = replay(args.url, data, model)
    except OmniClientError as error:
        print(f"omni replay: {error}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - start
    found = list(differences(recording.outputs, again.outputs, Tolerance(args.rtol, args.atol)))
    if args.json:
        print(json.dumps(_summary(recording, again, model, seconds) | {"differences": found}))
    else:
        _print(recording, again, model, seconds, found)
    return 1 if found else 0


def _summary(recording: Recording, again: Recording, model: str, seconds: float) -> dict[str, Any]:
    header = recording.header
    return {
        "pipeline": header.pipeline,
        "stage": header.stage,
        "request_id": header.request_id,
        "recorded": header.created,
        "recorded_with": header.software,
        "sampling_parameters": header.sampling,
        "model": model,
        "inputs": len(recording.inputs),
        "recorded_outputs": len(recording.outputs),
        "replayed_outputs": len(again.outputs),
        "seconds": round(seconds, 6),
        "replayed_with": again.header.software,
    }


def _print(recording: Recording, again: Recording, model: str, seconds: float, found: list[str]) -> None:
    header = recording.header
    print(
        f"stage {header.stage} of {header.pipeline}, request {header.request_id}, recorded {header.created} "
        f"by version {header.software}: {len(recording.inputs)} inputs, {len(recording.outputs)} outputs"
    )
    print(
        f"replayed on {model}, version {again.header.software}, in {seconds:.2f} s: {len(again.outputs)} outputs, "
        f"{'equal' if not found else 'which differ:'}"
    )
    for line in islice(found, SHOWN):
        print(f"  {line}")
    if len(found) > SHOWN:
        print(f"  ... and {len(found) - SHOWN} more differences")
