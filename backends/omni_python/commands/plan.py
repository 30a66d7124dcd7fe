"""`omni plan`: how many GPUs and replicas a load needs, from what the stages cost."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python import __version__
from omni_python.commands.asking import server_address
from omni_python.commands.help import HelpFormatter
from omni_python.proto.errors import InvalidArgument, OmniError

if TYPE_CHECKING:
    from omni_python.planning.costs import Costs
    from omni_python.planning.prediction import Prediction
    from omni_python.planning.sizing import Figure, LatencyLimit

_DESCRIPTION = """\
Say how many GPUs and replicas a load needs, what limits it, and how long requests wait: a queueing model of the
pipeline, from a file with what its stages cost. --measure writes that file: it asks a running server, traces every
request, and reads the server's metrics.

A copy of a device has a copy of each of its stages. Copies are added until the load is at most --load of what
saturates the pipeline, and until every --slo is kept. With --copies nothing is added to those that it names.
"""

_EXAMPLES = """\
examples:
  omni plan --measure localhost:8001 --concurrency 1,4,16 --out costs.yaml
  omni plan costs.yaml --rate 10                                   # GPUs, replicas, bottleneck, waits
  omni plan costs.yaml --rate 5,20,80 --slo ttfa=400ms --percentile 95
  omni plan costs.yaml --rate 20 --place talker_ar=gpu1 --place code2wav=gpu1
  omni plan costs.yaml --concurrency 16 --copies gpu0=1            # to compare with `omni bench --concurrency 16`

The formulas (a processor-sharing queue with a rate for each state for continuous batching, the chain of its iterations
for the first step, the chain of M/D^(1,K)/1 for batches, Pollaczek-Khinchine, Lee-Longton and Erlang's C, Little's law)
take Poisson arrivals. Beyond 90 % of the saturation they say more of the direction than of the size.

exit status: 0 planned or measured, 1 the server is not there, 2 wrong arguments or costs, or nothing can keep to them
"""

_FIGURES: dict[str, Figure] = {"ttft": "first_text", "ttfa": "first_audio", "total": "whole"}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan",
        help="say how many GPUs and replicas a load needs",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "costs", nargs="?", type=Path, metavar="COSTS", help="what the stages cost: a YAML or JSON file"
    )
    planned = parser.add_argument_group("to plan")
    planned.add_argument("--rate", metavar="R,...", help="requests a second, with Poisson arrivals")
    planned.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="NAME=LIMIT",
        help="what --percentile of the requests have to keep to: ttft, ttfa, total (ms or s); may be repeated",
    )
    planned.add_argument("--percentile", type=float, default=95.0, metavar="P", help="(default: %(default)g)")
    planned.add_argument(
        "--load", type=float, default=0.8, metavar="L", help="of the saturation, at most (default: %(default)g)"
    )
    planned.add_argument(
        "--place",
        action="append",
        default=[],
        metavar="STAGE=DEVICE",
        help="put a stage on another device than the file says; may be repeated",
    )
    planned.add_argument(
        "--copies",
        action="append",
        default=[],
        metavar="DEVICE=N",
        help="as many copies of a device, no more and no fewer; may be repeated",
    )
    planned.add_argument("--json", action="store_true", help="print the figures as one JSON object instead of tables")
    measured = parser.add_argument_group("to measure")
    measured.add_argument(
        "--measure", type=server_address, metavar="HOST:PORT", help="ask the server with this gRPC service"
    )
    measured.add_argument("--pipeline", default="qwen3_omni", metavar="NAME", help="(default: %(default)s)")
    measured.add_argument("--metrics", metavar="URL", help="of its metrics (default: http://HOST:8002/metrics)")
    measured.add_argument("--data", type=Path, metavar="FILE", help="what to ask, as for `omni bench`")
    measured.add_argument("--sampling", metavar="JSON", help="sampling parameters, in place of the data's")
    measured.add_argument("--requests", type=int, default=16, metavar="N", help="at each level (default: %(default)s)")
    measured.add_argument("--cores", type=float, metavar="N", help="of the server's machine (default: of this one)")
    measured.add_argument("--out", type=Path, metavar="FILE", help="write the costs there (default: standard output)")
    parser.add_argument(
        "--concurrency",
        metavar="N,...",
        help="to plan: so many clients that ask again as soon as they were answered, in place of --rate; to measure: "
        "the levels (default: 1,4,8), of which the highest bounds the batches of the plan",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Plan or measure; raises `OmniError` and `ConfigError` for wrong arguments and costs."""
    if args.measure is not None:
        if args.costs is not None:
            raise InvalidArgument("give a file of costs or --measure, not both; --out names the file to write")
        return _measure(args)
    if args.costs is None:
        raise InvalidArgument("give a file of costs; omni plan --measure HOST:PORT --out FILE writes one")
    if bool(args.rate) == bool(args.concurrency):
        raise InvalidArgument("give the load: either --rate or --concurrency")
    from omni_python.planning.costs import load_costs

    costs = load_costs(args.costs).placed(_pairs("--place", args.place))
    plans = _plans(args, costs)
    if args.json:
        print(_as_json(args, costs, plans))
    else:
        from rich.console import Console

        from omni_python.planning.tables import print_plans

        print_plans(costs, plans, Console())
    return 0


def _plans(args: argparse.Namespace, costs: Costs) -> list[Prediction]:
    from omni_python.planning.prediction import at_concurrency
    from omni_python.planning.sizing import size

    if not 0 < args.percentile < 100:
        raise InvalidArgument(f"--percentile: must be above 0 and below 100, not {args.percentile:g}")
    if not 0 < args.load < 1:
        raise InvalidArgument(f"--load: must be above 0 and below 1, not {args.load:g}")
    copies, limits = _copies(args, costs), _limits(args)
    if args.concurrency:
        full = {device: copies.get(device, 1) for device in costs.devices}
        levels = _numbers("--concurrency", args.concurrency)
        return [at_concurrency(costs, clients, full, args.percentile) for clients in levels]
    return [size(costs, rate, limits, args.load, args.percentile, copies) for rate in _numbers("--rate", args.rate)]


def _as_json(args: argparse.Namespace, costs: Costs, plans: Sequence[Prediction]) -> str:
    import msgspec

    from omni_python.planning.tables import warnings

    figures = {
        "pipeline": costs.pipeline,
        "version": __version__,
        "costs": str(args.costs),
        "plans": [{**msgspec.to_builtins(plan), "load": plan.load} for plan in plans],
        "warnings": warnings(costs, plans),
    }
    return json.dumps(figures, indent=1)


def _copies(args: argparse.Namespace, costs: Costs) -> dict[str, int]:
    from omni_python.config.errors import listed

    copies = {}
    for device, text in _pairs("--copies", args.copies).items():
        if device not in costs.devices:
            raise InvalidArgument(f"--copies: there is no device {device!r} (there are {listed(costs.devices)})")
        if not text.isdecimal() or int(text) < 1:
            raise InvalidArgument(f"--copies: {device} must have a whole number of at least 1, not {text!r}")
        copies[device] = int(text)
    return copies


def _limits(args: argparse.Namespace) -> list[LatencyLimit]:
    from omni_python.bench.slo import parse_objectives
    from omni_python.planning.sizing import LatencyLimit

    limits = []
    for objective in parse_objectives(args.slo):
        if objective.name not in _FIGURES:
            raise InvalidArgument(f"--slo: a plan predicts {', '.join(_FIGURES)}; not {objective.name}")
        limits.append(LatencyLimit(_FIGURES[objective.name], objective.limit))
    return limits


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in (part for given in texts for part in given.split(",")):
        name, separator, value = text.partition("=")
        if not (name and separator and value):
            raise InvalidArgument(f"{flag}: must be NAME=VALUE, not {text!r}")
        pairs[name] = value
    return pairs


def _numbers(flag: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [0.0]
    if any(not 0 < number < 1e6 for number in numbers):
        raise InvalidArgument(f"{flag}: must be numbers above 0 with commas between them, such as 1,4,16; not {text!r}")
    return numbers


def _measure(args: argparse.Namespace) -> int:
    from omni_python.client import OmniClient, OmniClientError
    from omni_python.commands.progress import working

    try:
        from omni_python.bench.usage import find_server
        from omni_python.planning.observation import observe
    except ImportError as error:
        raise OmniError(f"--measure needs the extra bench of this package ({error})") from None
    from omni_python.planning.costs import dump_costs
    from omni_python.planning.estimate import estimate

    levels = [math.ceil(level) for level in _numbers("--concurrency", args.concurrency or "1,4,8")]
    levels = sorted({1, *levels})
    if args.requests < 1:
        raise InvalidArgument("--requests: must be at least 1")
    host = args.measure.rpartition(":")[0]
    if not host or "://" in args.measure:
        raise InvalidArgument(f"--measure: the server's gRPC service as HOST:PORT, not {args.measure!r}")
    if args.out is not None and not args.out.absolute().parent.is_dir():
        raise InvalidArgument(f"--out: there is no folder {args.out.parent}")
    url = args.metrics or f"http://{host}:8002/metrics"
    about = f"omni plan --measure, omni_python {__version__}, {datetime.now(UTC):%Y-%m-%d}, concurrency {levels}"
    try:
        with OmniClient(args.measure, args.pipeline) as client:
            client.info()
        cores = args.cores or (len(os.sched_getaffinity(0)) if find_server(args.measure) is not None else 0)
        if not cores >= 1:
            raise InvalidArgument("--cores: the server is on another machine; say how many cores (1 or more) it has")
        with working(f"asking {args.measure} with {', '.join(map(str, levels))} clients"):
            seen, metrics = observe(args.measure, args.pipeline, url, _questions(args), levels, args.requests)
    except OmniClientError as error:
        print(f"omni plan: {error}", file=sys.stderr)
        return 1
    text = dump_costs(estimate(seen, metrics, args.pipeline, cores, about))
    if args.out is None:
        print(text, end="")
    else:
        args.out.write_text(text, encoding="utf-8")
        print(f"written to {args.out}; omni plan {args.out} --rate R", file=sys.stderr)
    return 0


def _questions(args: argparse.Namespace) -> list[Any]:
    from omni_python.bench.dataset import QUESTIONS, load_questions, with_options

    try:
        sampling = json.loads(args.sampling or "{}")
    except ValueError as error:
        raise InvalidArgument(f"--sampling: not valid JSON ({error})") from None
    if not isinstance(sampling, dict):
        raise InvalidArgument('--sampling: must be a JSON object, for example {"max_tokens": 64}')
    return with_options(load_questions(args.data or QUESTIONS), {"sampling": sampling})
