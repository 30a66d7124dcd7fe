"""Qwen2.5-Omni in a real tritonserver, compiled and asked as a user does it: 24 kHz from end to end."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from omni_python.cli import main
from omni_python.client import AudioChunk, Finished, InvalidRequest, OmniClient, PipelineInfo, TextDelta
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.models.qwen2_5_omni.test_pipeline import CODE, RATE, Ask, prompt, text_of
from tests.oracle.qwen2_5_omni_reference import Reference

ASK = Ask("What time is it?", max_codes=40)


@pytest.fixture(scope="module")
def server(qwen25: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("served") / "models"
    assert main(["compile", "qwen2_5_omni", "--model-path", str(qwen25), "--output", str(repository)]) == 0
    assert main(["validate", str(repository)]) == 0
    with TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=5), timeout_s=100) as server:
        yield server


@pytest.fixture
def client(server: TritonServer) -> Iterator[OmniClient]:
    with OmniClient(server.grpc_url, "qwen2_5_omni") as client:
        yield client


def test_it_tells_what_it_is(client: OmniClient) -> None:
    assert client.info() == PipelineInfo(("text", "audio"), ("chelsie", "ethan"), "chelsie", RATE, 32768)


def test_wav_by_triton_http_is_hugging_faces(server: TritonServer, qwen25: Path, reference: Reference) -> None:
    body = {
        "text_input": ASK.text,
        "voice": ASK.voice,
        "audio_format": "wav",
        "sampling_parameters": json.dumps(ASK.request.sampling),
    }
    url = f"http://{server.http_url}/v2/models/qwen2_5_omni/generate"
    answer = httpx.post(url, json=body, timeout=60, trust_env=False).raise_for_status().json()
    expected = reference(prompt(qwen25, ASK), ASK.voice, ASK.max_tokens, ASK.max_codes, ASK.seed, ASK.penalty)
    assert expected.margin > 1e-3, "too close to call in float32; take another text"
    assert answer["text_output"] == text_of(qwen25, expected.answer)
    assert answer["num_output_tokens"] == len(expected.answer)
    with wave.open(io.BytesIO(base64.b64decode(answer["audio_base64"]))) as file:
        assert file.getframerate() == answer["audio_sample_rate"] == RATE
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32767
    np.testing.assert_allclose(samples, expected.waveform, atol=1.2e-4, rtol=0)  # 1e-4 and half a step of 16 bits


def test_streamed_and_whole_are_equally_long(client: OmniClient, tmp_path: Path) -> None:
    sampling = ASK.request.sampling
    *events, finished = client.stream(ASK.text, sampling=sampling)
    whole = client.chat(ASK.text, sampling=sampling)
    assert isinstance(finished, Finished)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == whole.text
    chunks = [event for event in events if isinstance(event, AudioChunk)]
    assert len(chunks) > 1 and {chunk.sample_rate for chunk in chunks} == {RATE}
    samples = sum(len(chunk.samples) for chunk in chunks)
    assert samples == len(whole.audio) and samples % CODE == 0
    assert whole.finished.usage["audio_seconds"] == pytest.approx(samples / RATE, abs=1e-3)
    whole.save_wav(tmp_path / "speech.wav")
    with wave.open(str(tmp_path / "speech.wav")) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (RATE, samples, 1)


def test_wrong_requests_are_refused(client: OmniClient) -> None:
    with pytest.raises(InvalidRequest, match="unknown voice 'vivian'; valid: chelsie, ethan"):
        client.chat("Hi.", voice="vivian")
