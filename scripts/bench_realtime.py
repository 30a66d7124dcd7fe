"""Milliseconds from a barge-in until the stages and the client know of it.

A session of the realtime API over the no-op line of three stages, whose middle stage works for a second and writes down
when it hears of an abort. The client, which uses the official SDK, either sends `response.cancel`, or speaks: it sends
sound in pieces of 20 ms, as from a microphone, and `spoken` counts from the piece in which the server finds speech.

    scripts/bench_realtime [--rounds N]
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import openai
from fastapi import FastAPI
from openai.resources.realtime.realtime import RealtimeConnection

from omni_python.client import AsyncOmniClient, Event
from omni_python.config.compile import compile_pipeline
from omni_python.models.noop.config import NoopLinePipelineConfig
from omni_python.preprocessing.audio import decode_audio
from omni_python.proto.wav import pcm16
from omni_python.serve.openai.realtime.route import realtime_endpoint
from omni_python.serve.openai.server import HttpServer
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

PIPELINE = "noop_line"
RATE = 24000
PIECE_S = 0.02
WORK_S = 1.0
QUESTION = Path(__file__).parent.parent / "backends/omni_python/commands/data/question.flac"


class WorkingClient(AsyncOmniClient):
    """Asks the middle stage to work long, which OpenAI's vocabulary cannot say."""

    def stream(self, text: str | None = None, **options: Any) -> AsyncGenerator[Event, None]:
        return super().stream(text, **{**options, "sampling": {"delay": WORK_S}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of each kind (default: %(default)s)")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        repository, log = Path(folder) / "models", Path(folder) / "aborts"
        compile_pipeline(NoopLinePipelineConfig(runtime_overrides={"b": {"abort_log": str(log)}}), repository)
        with TritonServer.start(ServerOptions(model_repository=repository)) as server:
            app = FastAPI()
            endpoint = realtime_endpoint(lambda name: WorkingClient(server.grpc_url, name))
            app.add_api_websocket_route("/v1/realtime", endpoint)
            with HttpServer(app) as api:
                for name, barge_in in (("cancel", cancel), ("spoken", speak)):
                    print(json.dumps({"bench": name, **measured(api, log, rounds, barge_in)}), flush=True)


def measured(
    api: HttpServer, log: Path, rounds: int, barge_in: Callable[[RealtimeConnection], float]
) -> dict[str, Any]:
    """`barge_in` interrupts the running response, and gives the time of what it sent to do so."""
    stage, done = [], []
    url = f"{api.host}:{api.port}/v1"
    for _ in range(rounds):
        log.write_text("")
        with (
            openai.OpenAI(base_url=f"http://{url}", websocket_base_url=f"ws://{url}", api_key="none") as client,
            client.realtime.connect(model=PIPELINE) as connection,
        ):
            asked: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
            connection.response.create(response={"input": [asked], "output_modalities": ["text"]})
            while connection.recv().type != "response.created":
                pass
            time.sleep(0.1)  # until the middle stage works
            start = barge_in(connection)
            while (event := connection.recv()).type != "response.done":
                pass
            done.append((time.monotonic() - start) * 1e3)
            assert event.response.status == "cancelled", event
        time.sleep(WORK_S)
        stage.append((float(log.read_text().split()[0]) - start) * 1e3)
    return {
        "stage_hears_ms": round(statistics.median(stage), 1),
        "stage_hears_max_ms": round(max(stage), 1),
        "response_done_ms": round(statistics.median(done), 1),
    }


def cancel(connection: RealtimeConnection) -> float:
    start = time.monotonic()
    connection.response.cancel()
    return start


def speak(connection: RealtimeConnection) -> float:
    samples = decode_audio(np.frombuffer(QUESTION.read_bytes(), np.uint8), RATE)
    for piece in np.array_split(samples, int(len(samples) / RATE / PIECE_S)):
        start = time.monotonic()
        connection.input_audio_buffer.append(audio=base64.b64encode(pcm16(piece)).decode())
        time.sleep(PIECE_S)
        # The server's next event is there: it found speech in this piece.
        if connection._connection.recv_messages.frames.qsize():
            return start
    raise SystemExit("no speech was found")


if __name__ == "__main__":
    main()
