"""S2-Pro in a real tritonserver: compiled and asked by the commands, and read aloud by OpenAI's API."""

from __future__ import annotations

import base64
import io
import json
import shlex
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

import httpx
import numpy as np
import openai
import pytest

from omni_python.cli import main
from omni_python.client import AudioChunk, Finished, InvalidRequest, OmniClient, PipelineInfo, RequestOptions
from omni_python.commands.demonstration import TEXT, demonstrate, examples
from omni_python.models.fish_s2_pro.preprocess import Preprocessor
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.serve.openai.app import create_app
from omni_python.serve.openai.server import HttpServer
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.models.fish_s2_pro.test_pipeline import Ask
from tests.models.fish_s2_pro.test_preprocess import voice, wav
from tests.oracle.fish_s2_pro_reference import FRAME, RATE, Reference

SAMPLED = {"max_tokens": 60, "seed": 3, "ignore_eos": True}
FRAMES = 59


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """Made and compiled as a user does it."""
    folder = tmp_path_factory.mktemp("served")
    assert main(["checkpoint", str(folder / "tiny"), "--family", "fish_s2_pro"]) == 0
    repository = folder / "models"
    assert main(["compile", "fish_s2_pro", "--model-path", str(folder / "tiny"), "--output", str(repository)]) == 0
    assert main(["validate", str(repository)]) == 0
    with TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=5), timeout_s=100) as server:
        yield server


@pytest.fixture
def client(server: TritonServer) -> Iterator[OmniClient]:
    with OmniClient(server.grpc_url, "fish_s2_pro") as client:
        yield client


def test_it_tells_what_it_is(client: OmniClient) -> None:
    assert client.info() == PipelineInfo(("audio",), ("default",), "default", 44100, 4096)


def test_streamed_speech_is_the_whole(client: OmniClient, tmp_path: Path) -> None:
    *chunks, finished = client.stream("Good morning!", sampling=SAMPLED)
    assert isinstance(finished, Finished) and finished.finish_reason == "length"
    assert all(isinstance(chunk, AudioChunk) and chunk.sample_rate == RATE for chunk in chunks)
    pieces = [chunk.samples for chunk in chunks if isinstance(chunk, AudioChunk)]
    assert [len(piece) for piece in pieces] == [40 * FRAME, 19 * FRAME]
    whole = client.chat("Good morning!", sampling=SAMPLED)
    np.testing.assert_allclose(np.concatenate(pieces), whole.audio, atol=1e-4, rtol=0)
    assert whole.finished.usage["audio_seconds"] == pytest.approx(FRAMES * FRAME / 44100, abs=1e-3)
    whole.save_wav(tmp_path / "speech.wav")
    with wave.open(str(tmp_path / "speech.wav")) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (44100, FRAMES * FRAME, 1)


def test_quickstart_shows_it(server: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = demonstrate(server.grpc_url, "fish_s2_pro", tmp_path / "speech.wav")
    assert shown.finished.finish_reason in ("stop", "length")  # random weights may end at once
    assert TEXT in capsys.readouterr().out
    asked = examples(server.http_url, server.grpc_url, "fish_s2_pro").splitlines()[-1]
    _, *words = shlex.split(asked)
    spoken = ["--out", str(tmp_path / "read.wav"), "--sampling", json.dumps({**SAMPLED, "max_tokens": 12})]
    assert main([*words, *spoken]) == 0
    with wave.open(str(tmp_path / "read.wav")) as file:
        assert file.getframerate() == RATE


def test_a_cloned_voice_is_its_requests_alone(client: OmniClient, tmp_path: Path) -> None:
    def spoken(**voiced: Unpack[RequestOptions]) -> np.ndarray:
        sampling = {**SAMPLED, "max_tokens": 12} | ({"reference_text": "what I say"} if voiced else {})
        return client.chat("Good morning!", sampling=sampling, **voiced).audio  # type: ignore[misc]

    sound = wav(voice(1)).tobytes()
    own = spoken()
    one = spoken(audios=[sound])
    same = spoken(audio=voice(1), audio_sample_rate=RATE)
    other = spoken(audio=voice(2), audio_sample_rate=RATE)
    np.testing.assert_allclose(spoken(), own, atol=1e-4, rtol=0)
    np.testing.assert_allclose(one, same, atol=1e-4, rtol=0)
    for first, second in ((own, one), (one, other), (own, other)):
        assert np.abs(first - second).max() > 0.01
    with pytest.raises(InvalidRequest, match="given are 1 sounds and no words"):
        client.chat("Good morning!", audios=[sound])


def test_omni_chat_writes_its_speech(server: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, own = tmp_path / "answer.wav", tmp_path / "voice.wav"
    own.write_bytes(wav(voice(1)).tobytes())
    sampling = json.dumps({**SAMPLED, "reference_text": "what I say"})
    asked = ["chat", "Good morning!", "--url", server.grpc_url, "--pipeline", "fish_s2_pro", "--audio", str(own)]
    assert main([*asked, "--sampling", sampling, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["speech"]["sample_rate"] == 44100
    assert told["speech"]["seconds"] == pytest.approx(FRAMES * FRAME / 44100, abs=1e-5)
    with wave.open(str(out)) as file:
        assert (file.getframerate(), file.getnframes()) == (44100, FRAMES * FRAME)


def test_wav_by_triton_http(server: TritonServer, fish: Path, reference: Reference) -> None:
    """`generate`, for a WAV file in base64; greedy, so the plain model says what must be in it."""
    ask = Ask("Good morning!", {"temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 30})
    url = f"http://{server.http_url}/v2/models/fish_s2_pro/generate"
    body = {"text_input": ask.text, "audio_format": "wav", **ask.sampling}
    answer = httpx.post(url, json=body, timeout=60, trust_env=False).json()
    with wave.open(io.BytesIO(base64.b64decode(answer["audio_base64"]))) as file:
        assert file.getframerate() == answer["audio_sample_rate"] == 44100
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32767
    prompt = Preprocessor(fish, MediaLoader(MediaPolicy()))(ask.request)
    expected = reference.speech(prompt.tokens.tolist(), prompt.codes, 30)
    assert expected.margin > 1e-4, "too close to call in float32; take another text"
    np.testing.assert_allclose(samples, reference.waveform(expected.codes).numpy(), atol=1.5e-4, rtol=0)


def test_openai_speech(server: TritonServer) -> None:
    with (
        HttpServer(create_app(server.grpc_url, f"{server.host}:{server.metrics_port}")) as api,
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0, http_client=http) as sdk,
    ):
        speech = sdk.audio.speech.create(
            model="fish_s2_pro", input="Good morning!", voice="default", response_format="wav", extra_body={"seed": 5}
        )
        with wave.open(io.BytesIO(speech.content)) as file:
            assert file.getframerate() == 44100
            assert len(file.readframes(1 << 30)) % (2 * FRAME) == 0
        pcm = sdk.audio.speech.create(
            model="fish_s2_pro", input="Good morning!", voice="default", response_format="pcm", extra_body={"seed": 5}
        )
        assert pcm.response.headers["content-type"] == "audio/pcm;rate=44100"
        assert len(pcm.content) % (2 * FRAME) == 0 and len(pcm.content)
        with pytest.raises(openai.BadRequestError, match="takes no instructions"):
            sdk.audio.speech.create(model="fish_s2_pro", input="Hi.", voice="default", instructions="Be glad.")
        with pytest.raises(openai.BadRequestError, match="unknown voice 'ethan'; valid: default"):
            sdk.audio.speech.create(model="fish_s2_pro", input="Hi.", voice="ethan")
