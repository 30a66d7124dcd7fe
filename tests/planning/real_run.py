"""What a plan says of a server that `omni plan --measure` measured, beside what `omni bench` then sees of it.

    python -m tests.planning.real_run --requests 96

starts the tiny pipeline on this machine, which should have nothing else to do, and prints both, for some numbers of
clients.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_python.cli import main as omni
from omni_python.config.compile import compile_pipeline
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.planning.costs import HOST, Costs, load_costs
from omni_python.planning.prediction import Prediction, at_concurrency
from omni_python.planning.server_metrics import Batches, read_metrics
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.models import tiny_model

PIPELINE = "qwen3_omni"
LENGTHS = [(9, 18), (15, 30), (12, 24), (10, 22), (14, 26), (11, 28), (13, 20), (12, 24)]
"""Tokens of the text and frames of the speech. Of answers that are all as long clients that ask again at once fall into
step, and have larger batches than any that come at random."""

TEXT_TOKENS = sum(text for text, _ in LENGTHS) / len(LENGTHS)
FRAMES = sum(frames for _, frames in LENGTHS) / len(LENGTHS)
_COMPUTING = (f"{PIPELINE}_thinker", f"{PIPELINE}_speech")
"""Processes whose work is nearly all that of their stages."""

_METRICS_LAG_S = 2.5


@dataclass(frozen=True)
class Figure:
    name: str
    planned: float
    seen: float

    def __str__(self) -> str:
        by = f"{self.planned / self.seen - 1:+.0%}" if self.seen else "-"
        return f"{self.name:32} {self.planned:9.4g} {self.seen:9.4g} {by:>6}"


def write_questions(path: Path) -> Path:
    with path.open("w") as file:
        for seed, (tokens, frames) in enumerate(LENGTHS):
            talker = {"max_tokens": frames + 1, "ignore_eos": True, "seed": seed}
            sampling = {"max_tokens": tokens, "ignore_eos": True, "talker": talker}
            print(json.dumps({"text": "How are you today?", "sampling": sampling}), file=file)
    return path


def measure(server: TritonServer, folder: Path, levels: str, requests: int) -> Costs:
    """What `omni plan --measure` writes."""
    data, file = write_questions(folder / "questions.jsonl"), folder / "costs.yaml"
    asked = ["--data", str(data), "--concurrency", levels, "--requests", str(requests)]
    assert omni(["plan", "--measure", server.grpc_url, "--metrics", _metrics(server), *asked, "--out", str(file)]) == 0
    return load_costs(file)


def compare(server: TritonServer, costs: Costs, folder: Path, clients: int, requests: int) -> list[Figure]:
    """Planned and seen: latencies are medians."""
    data = write_questions(folder / "questions.jsonl")
    load = ["bench", "--url", server.grpc_url, "--data", str(data), "--json", "--concurrency", str(clients)]
    before, shown = _batches(server), io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert omni([*load, "--requests", str(requests)]) == 0
    [seen] = json.loads(shown.getvalue())["loads"]
    after = _batches(server)
    plan = at_concurrency(costs, clients, dict.fromkeys(costs.devices, 1), percentile=50)
    return [*_totals(plan, seen, costs), *_by_stage(plan, before, after)]


def _totals(plan: Prediction, seen: dict[str, Any], costs: Costs) -> list[Figure]:
    assert plan.first_text is not None and plan.first_audio is not None
    cpu = plan.devices[HOST].busy * costs.devices[HOST].cores / plan.rate * 1e3
    generator = seen["generator_cores"] / seen["requests_per_s"] * 1e3
    other = costs.devices[HOST].other_ms + costs.devices[HOST].standing / plan.rate * 1e3
    processes: dict[str, float] = seen["cpu_ms"]
    computing = sum(used for name, used in processes.items() if name in _COMPUTING)
    return [
        Figure("requests/s", plan.rate, seen["requests_per_s"]),
        Figure("first text, ms", plan.first_text.tail_ms, seen["ttft"]["p50"] * 1e3),
        Figure("first audio, ms", plan.first_audio.tail_ms, seen["ttfa"]["p50"] * 1e3),
        Figure("whole, ms", plan.whole.mean_ms, seen["total"]["p50"] * 1e3),
        Figure("CPU ms/request", cpu, sum(processes.values()) + generator),
        Figure("  of processes that compute", cpu - other, computing),
        Figure("  of all others", other, sum(processes.values()) + generator - computing),
    ]


def _by_stage(plan: Prediction, before: dict[str, Batches], after: dict[str, Batches]) -> list[Figure]:
    done = {name: after[name].since(before[name]) for name in before}
    return [
        Figure(f"  batch of {name}", stage.batch, done[name].rows / done[name].steps)
        for name, stage in plan.stages.items()
        if name in done and done[name].steps
    ]


def _batches(server: TritonServer) -> dict[str, Batches]:
    time.sleep(_METRICS_LAG_S)
    return read_metrics(_metrics(server), PIPELINE).batches


def _metrics(server: TritonServer) -> str:
    return f"http://{server.host}:{server.metrics_port}/metrics"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--levels", default="1,2,4")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = folder / "repository"
        compile_pipeline(Qwen3OmniSpeechPipelineConfig(model_path=str(tiny_model.checkpoint())), repository)
        with TritonServer.start(ServerOptions(model_repository=repository), timeout_s=120) as server:
            costs = measure(server, folder, args.levels, args.requests // 2)
            print((folder / "costs.yaml").read_text())
            for clients in map(int, args.levels.split(",")):
                print(f"{f'{clients} clients':32} {'planned':>9} {'seen':>9}")
                print(*compare(server, costs, folder, clients, args.requests), sep="\n", flush=True)


if __name__ == "__main__":
    main()
