"""What `omni quickstart` shows: one answer, with its figures, and requests to paste."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from omni_python.commands.answering import AnswerView
from omni_python.commands.printing import figures
from omni_python.models.catalog import READERS, SIGHTLESS

if TYPE_CHECKING:
    from omni_python.client import Answer, Event, OmniClient

_DATA = Path(__file__).parent / "data"
PHOTO, QUESTION = _DATA / "photo.jpg", _DATA / "question.flac"

TEXT = "Good morning! The sun is up, and the house is blue."
"""For pipelines that read aloud."""

_LONGEST = {"max_tokens": 128, "talker": {"max_tokens": 512}}
_LONGEST_READING = {"max_tokens": 256}
"""Enough for a few sentences; random weights might never end by themselves."""

_EXPLAINED = {"real-time factor": "seconds for the whole answer / seconds of speech; below 1 is faster than it plays"}

_EXAMPLES = """\
Try it from another terminal:

# HTTP: an event for every piece of text
curl -sN http://{http}/v2/models/{pipeline}/generate_stream -d \\
  '{{"text_input": "Who are you?", "modalities": ["text"], "max_tokens": 64, "stream": true}}'

# gRPC, with nothing but tritonclient
{python} - <<'END'
import queue
import numpy as np
import tritonclient.grpc as triton

def tensor(name, kind, value):
    tensor = triton.InferInput(name, [1], kind)
    tensor.set_data_from_numpy(np.array([value], dtype=object if kind == "BYTES" else bool))
    return tensor

inputs = [
    tensor("text_input", "BYTES", b"Who are you?"),
    tensor("sampling_parameters", "BYTES", b'{{"max_tokens": 64, "talker": {{"max_tokens": 256}}}}'),
    tensor("stream", "BOOL", True),
]
responses = queue.Queue()
with triton.InferenceServerClient("{grpc}") as client:
    client.start_stream(lambda result, error: responses.put((result, error)))
    client.async_stream_infer("{pipeline}", inputs)
    while True:
        result, error = responses.get()
        if error:
            raise error
        if (delta := result.as_numpy("text_output")) is not None:
            print(delta[0].decode(), end="", flush=True)
        if (samples := result.as_numpy("audio_output")) is not None:
            print(f" [{{len(samples)}} samples of speech] ", end="", flush=True)
        if result.as_numpy("finish_reason") is not None:
            break
print()
END

# The command line client; without a question it holds a conversation
{omni} chat "What colour is the house?" --url {grpc}{pipeline_option} \\
  --image {photo} --max-tokens 64
"""

_SPEECH_EXAMPLES = """\
Try it from another terminal:

# HTTP: an event for every piece of text and of speech
curl -sN http://{http}/v2/models/{pipeline}/generate_stream -d \\
  '{{"text_input": "Good morning!", "audio_format": "pcm16", "stream": true}}'

# The command line client
{omni} chat {asked} --url {grpc}{pipeline_option}
"""


def question(client: OmniClient, pipeline: str) -> Generator[Event, None, None]:
    """The answer's events to a spoken question about a photo, as far as the pipeline takes such a thing. Raises what
    `OmniClient.stream` raises."""
    if pipeline in READERS:
        return client.stream(TEXT, sampling=_LONGEST_READING)
    if pipeline in SIGHTLESS:
        return client.stream(audios=[QUESTION])
    return client.stream(audios=[QUESTION], images=[PHOTO], sampling=_LONGEST)


def demonstrate(url: str, pipeline: str, out: Path) -> Answer:
    """Ask `question`; print text, figures and where the speech went, which is `out`.

    `url` is host:port of the server's gRPC service. Raises what `OmniClient.stream` raises.
    """
    from omni_python.client import OmniClient

    if pipeline in READERS:
        print(f'\ntext      "{TEXT}"')
    else:
        print(f'\nquestion  spoken ({_shown(QUESTION)}): "What can you see in this picture?"')
        if pipeline not in SIGHTLESS:
            print(f"picture   {_shown(PHOTO)}")
    print("answer", flush=True)
    with (
        OmniClient(url, pipeline) as client,
        closing(question(client, pipeline)) as events,
    ):
        answer = AnswerView(sys.stdout).collect(events)
    if len(answer.audio):
        answer.save_wav(out)
        print(f"speech    {out} ({answer.sample_rate} Hz)")
    print()
    for label, value in figures(answer).items():
        explained = f"   ({_EXPLAINED[label]})" if label in _EXPLAINED else ""
        print(f"{label:<20} {value}{explained}")
    return answer


def examples(http_url: str, grpc_url: str, pipeline: str) -> str:
    """Requests to paste into a shell in the current folder; the addresses are host:port."""
    python = Path(sys.executable)
    return (_SPEECH_EXAMPLES if pipeline in SIGHTLESS | READERS else _EXAMPLES).format(
        http=http_url,
        grpc=grpc_url,
        pipeline=pipeline,
        pipeline_option="" if pipeline == "qwen3_omni" else f" --pipeline {pipeline}",
        python=shlex.quote(_shown(python)),
        omni=shlex.quote(_shown(python.with_name("omni"))),
        photo=shlex.quote(_shown(PHOTO)),
        asked='"Good morning!"' if pipeline in READERS else f"--audio {shlex.quote(_shown(QUESTION))}",
    )


def _shown(path: Path) -> str:
    """`path`, as seen from the current folder where it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
