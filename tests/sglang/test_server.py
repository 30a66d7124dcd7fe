"""A real tritonserver whose thinker and talker both run on SGLang, each beside stages on plain torch in one process,
which SGLang leaves its state all over: what tests/e2e asks of the pipeline holds there, too."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omni_python.client import Answer, OmniClient
from omni_python.config.compile import compile_pipeline
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from tests.e2e.test_cancel import cancel_at_random, test_grpc, test_http_disconnect
from tests.e2e.test_oracle import (
    WAVE_TOLERANCE,
    test_a_seed_makes_sampling_reproducible,
    test_a_text_only_request_never_reaches_the_speech_stages,
    test_greedy_answers_equal_the_oracles,
    test_sixteen_mixed_requests_at_once_give_what_each_gives_alone,
)
from tests.e2e.test_streaming import SAMPLES_PER_FRAME, TRIMMED
from tests.models import tiny_model

__all__ = [
    "test_a_seed_makes_sampling_reproducible",
    "test_a_text_only_request_never_reaches_the_speech_stages",
    "test_greedy_answers_equal_the_oracles",
    "test_grpc",
    "test_http_disconnect",
    "test_sixteen_mixed_requests_at_once_give_what_each_gives_alone",
]

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    engine: dict[str, Any] = {"engine": "sglang", "kv_tokens": 16384}
    overrides = {"thinker": engine, "talker_ar": engine, "code2wav": {"chunk_frames": 4}}
    config = Qwen3OmniSpeechPipelineConfig(
        model_path=str(tiny_model.checkpoint()),
        runtime_overrides=overrides,
        fused_stages=[["mm_aggregate", "thinker"]],  # so the encoders are in the thinker's process, too
    )
    repository = tmp_path_factory.mktemp("sglang_models")
    compile_pipeline(config, repository)
    with TritonServer.start(ServerOptions(model_repository=repository), timeout_s=250) as server:
        yield server


@pytest.fixture
def client(server: TritonServer) -> Iterator[OmniClient]:
    with OmniClient(server.grpc_url, "qwen3_omni") as client:
        yield client


def test_random_cancellations_leave_nothing(server: TritonServer, client: OmniClient) -> None:
    """Fewer than tests/e2e makes: those of the engine alone are in test_thinker and test_talker."""
    cancel_at_random(server, client, 6)


@pytest.mark.parametrize("frames", [0, 1, 3, 30])
def test_streamed_speech_equals_the_whole(client: OmniClient, frames: int) -> None:
    for chosen in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 17}):
        talker = {"max_tokens": frames + 1, "ignore_eos": True, **chosen}
        sampling = {"max_tokens": 6, "ignore_eos": True, "talker": talker}
        whole = client.chat("Say something long.", sampling=sampling)
        streamed = Answer.collect(client.stream("Say something long.", sampling=sampling))
        assert len(whole.audio) == (frames * SAMPLES_PER_FRAME - TRIMMED if frames else 0)
        assert streamed.text == whole.text
        assert streamed.audio.shape == whole.audio.shape
        np.testing.assert_allclose(streamed.audio, whole.audio, atol=WAVE_TOLERANCE)
