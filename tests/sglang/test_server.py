"""A real tritonserver whose thinker and talker both run on SGLang, each in its own stub process."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.client import Answer, OmniClient
from omni_python.config.compile import compile_pipeline
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.serve.triton_server import ServerOptions, TritonServer
from tests.models import tiny_model
from tests.oracle.cases import CASES, load_case

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.timeout(300),
]


def test_every_recorded_generation_is_met(tmp_path: Path) -> None:
    engine: dict[str, Any] = {"engine": "sglang", "kv_tokens": 8192}
    overrides = {"thinker": engine, "talker_ar": engine}
    config = Qwen3OmniSpeechPipelineConfig(model_path=str(tiny_model.checkpoint()), runtime_overrides=overrides)
    compile_pipeline(config, tmp_path)
    with TritonServer.start(ServerOptions(model_repository=tmp_path), timeout_s=200) as server:

        def ask(name: str) -> Answer:
            case = load_case(name)
            with OmniClient(server.grpc_url, "qwen3_omni") as client:
                return client.chat(messages=case.openai_messages(), voice=case.voice, sampling=case.sampling())

        with ThreadPoolExecutor(len(CASES)) as pool:
            answers = dict(zip(CASES, pool.map(ask, CASES), strict=True))
    for name, answer in answers.items():
        case = load_case(name)
        assert answer.text == case.text
        assert answer.finished.finish_reason == case.answer_ends
        assert answer.audio.shape == case.waveform.shape
        np.testing.assert_allclose(answer.audio, case.waveform, atol=1e-4)
