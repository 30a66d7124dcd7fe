"""Ming-Omni in a real tritonserver: compiled and asked by the commands, and by OpenAI's API; 44.1 kHz all the way."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from omni_python.cli import main
from omni_python.client import (
    AudioChunk,
    Finished,
    InvalidRequest,
    NotSupported,
    OmniClient,
    PipelineInfo,
    TextDelta,
)
from omni_python.serve.openai.app import create_app
from omni_python.serve.openai.server import HttpServer
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.models.ming_omni.test_pipeline import RATE, STEP, pieces
from tests.models.ming_omni.test_seeing import image, picture, seen
from tests.oracle.ming_omni_reference import Reference

QUESTION = "Draw."
SAMPLING = {"max_tokens": 40, "talker": {"seed": 6, "max_tokens": 6, "ignore_eos": True}}
SAMPLES = 3 * 6 * STEP


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """Made and compiled as a user does it."""
    folder = tmp_path_factory.mktemp("served")
    assert main(["checkpoint", str(folder / "tiny"), "--family", "ming_omni"]) == 0
    repository = folder / "models"
    assert main(["compile", "ming_omni", "--model-path", str(folder / "tiny"), "--output", str(repository)]) == 0
    assert main(["validate", str(repository)]) == 0
    with TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=5), timeout_s=100) as server:
        yield server


@pytest.fixture
def client(server: TritonServer) -> Iterator[OmniClient]:
    with OmniClient(server.grpc_url, "ming_omni") as client:
        yield client


def test_it_tells_what_it_is(client: OmniClient) -> None:
    assert client.info() == PipelineInfo(("text", "audio"), ("db30", "default"), "db30", RATE, 4096)


def test_streamed_speech_is_the_whole_and_the_plain_models(
    client: OmniClient, ming_reference: Reference, tmp_path: Path
) -> None:
    *chunks, finished = client.stream(QUESTION, sampling=SAMPLING, voice="default")
    assert isinstance(finished, Finished)
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))
    sounds = [chunk for chunk in chunks if isinstance(chunk, AudioChunk)]
    assert {sound.sample_rate for sound in sounds} == {RATE}
    prompts = [ming_reference.speech.prompt(piece) for piece in pieces(text)]
    spoken = ming_reference.speech.speak(prompts, 6, 6, may_stop=False)
    samples = np.concatenate([sound.samples for sound in sounds])
    np.testing.assert_allclose(samples, ming_reference.speech.waveform(spoken.pieces).numpy(), atol=1e-4, rtol=0)
    whole = client.chat(QUESTION, sampling=SAMPLING, voice="default")
    assert whole.text == text and len(whole.audio) == SAMPLES
    np.testing.assert_allclose(samples, whole.audio, atol=1e-5, rtol=0)
    assert whole.finished.usage["audio_seconds"] == pytest.approx(SAMPLES / RATE, abs=1e-3)
    whole.save_wav(tmp_path / "speech.wav")
    with wave.open(str(tmp_path / "speech.wav")) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (RATE, SAMPLES, 1)


def test_wav_by_triton_http_and_by_omni_chat(
    server: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://{server.http_url}/v2/models/ming_omni/generate"
    body = {"text_input": QUESTION, "audio_format": "wav", "sampling_parameters": json.dumps(SAMPLING)}
    answer = httpx.post(url, json=body, timeout=60, trust_env=False).json()
    with wave.open(io.BytesIO(base64.b64decode(answer["audio_base64"]))) as file:
        assert file.getframerate() == answer["audio_sample_rate"] == RATE
        assert file.getnframes() == SAMPLES
    out = tmp_path / "answer.wav"
    asked = ["chat", QUESTION, "--url", server.grpc_url, "--pipeline", "ming_omni", "--json", "--out", str(out)]
    assert main([*asked, "--sampling", json.dumps(SAMPLING)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["speech"]["sample_rate"] == RATE
    assert told["speech"]["seconds"] == pytest.approx(SAMPLES / RATE, abs=1e-5)
    with wave.open(str(out)) as file:
        assert (file.getframerate(), file.getnframes()) == (RATE, SAMPLES)


def test_openai(server: TritonServer) -> None:
    with (
        HttpServer(create_app(server.grpc_url, f"{server.host}:{server.metrics_port}")) as api,
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0, http_client=http) as sdk,
    ):
        completion = sdk.chat.completions.create(
            model="ming_omni",
            messages=[{"role": "user", "content": QUESTION}],
            modalities=["text", "audio"],
            audio={"voice": "default", "format": "wav"},
            max_completion_tokens=40,
            extra_body={"talker": SAMPLING["talker"]},
        )
        audio = completion.choices[0].message.audio
        assert audio is not None
        with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
            assert (file.getframerate(), file.getnframes()) == (RATE, SAMPLES)


def test_a_picture_is_seen(client: OmniClient, ming_reference: Reference, tmp_path: Path) -> None:
    shown = picture(96, 64, 1)
    (tmp_path / "shown.png").write_bytes(image(shown).data.tobytes())
    film = seen(ming_reference, shown)
    asked = ming_reference.prompt(ming_reference.picture(film[1]) + "What is it?", films=[film])
    expected = ming_reference.answer(asked, 10)
    assert expected.margin > 1e-3, "too close to call in float32; take another picture"
    images, sampling = [tmp_path / "shown.png"], {"max_tokens": 10}
    answer = client.chat("What is it?", images=images, modalities=["text"], sampling=sampling)
    assert answer.text == ming_reference.text(expected.tokens)


def test_images_are_refused_by_name(client: OmniClient) -> None:
    with pytest.raises(NotSupported, match="image_generation"):
        client.chat("Paint a fish.", modalities=["image"])
    with pytest.raises(InvalidRequest, match="unknown voice 'db31'; valid: db30, default"):
        client.chat("Hello", voice="db31")
