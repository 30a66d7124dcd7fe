"""The served pipeline against Hugging Face's `generate`, for every kind of input."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.client import Answer, AudioChunk, OmniClient
from omni_python.models.loading.checkpoint import checkpoint_hash
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.oracle.cases import CASES, Case, load_case
from tests.waiting import wait_until

WAVE_TOLERANCE = 1e-4


def ask(client: OmniClient, case: Case, **changes: Any) -> Answer:
    options = {"messages": case.openai_messages(), "voice": case.voice, "sampling": case.sampling(), **changes}
    return client.chat(**options)


def check_audio(answer: Answer, case: Case) -> None:
    assert answer.sample_rate == 24_000
    assert answer.audio.shape == case.waveform.shape
    assert np.abs(answer.audio - case.waveform).max() < WAVE_TOLERANCE


def test_the_checkpoint_is_the_oracles(checkpoint: Path) -> None:
    assert {load_case(name).checkpoint for name in CASES} == {checkpoint_hash(checkpoint)}


@pytest.mark.parametrize("name", CASES)
def test_margins_leave_no_room_for_chance(name: str) -> None:
    margins = load_case(name).margins
    assert min(margins["thinker"], margins["talker"], margins["code_predictor"]) > 0.005


@pytest.mark.parametrize("name", CASES)
def test_greedy_answers_equal_the_oracles(client: OmniClient, name: str) -> None:
    case = load_case(name)
    answer = ask(client, case)
    assert answer.text == case.text
    assert answer.finished.finish_reason == case.answer_ends
    assert answer.finished.usage["audio_finish_reason"] == case.speech_ends
    assert answer.finished.usage["input_tokens"] == len(case.input_ids)
    assert answer.finished.usage["output_tokens"] == len(case.answer)
    check_audio(answer, case)


@pytest.mark.parametrize("name", CASES)
def test_streams_equal_the_oracles(client: OmniClient, name: str) -> None:
    case = load_case(name)
    events = list(client.stream(messages=case.openai_messages(), voice=case.voice, sampling=case.sampling()))
    answer = Answer.collect(events)
    assert answer.text == case.text
    check_audio(answer, case)
    frames = case.codes.shape[1]
    assert sum(isinstance(event, AudioChunk) for event in events) >= frames // 10, "the speech came at once"


@pytest.mark.parametrize("name", ["text", "audio_image", "all"])
def test_text_only_pipeline_gives_the_same_text(text_client: OmniClient, name: str) -> None:
    case = load_case(name)
    sampling = {key: value for key, value in case.sampling().items() if key != "talker"}
    answer = ask(text_client, case, voice=None, sampling=sampling)
    assert answer.text == case.text
    assert len(answer.audio) == 0


def test_a_seed_makes_sampling_reproducible(client: OmniClient) -> None:
    def sampled(seed: int) -> Answer:
        talker = {"temperature": 0.9, "seed": seed, "max_tokens": 30}
        sampling = {"temperature": 1.0, "top_p": 0.95, "seed": seed, "max_tokens": 12, "talker": talker}
        return client.chat("Tell me a story.", sampling=sampling)

    seed = random.randrange(1 << 40)
    first, second, other = sampled(seed), sampled(seed), sampled(seed + 1)
    assert first.text == second.text
    assert np.array_equal(first.audio, second.audio)
    assert (first.text, first.audio.tobytes()) != (other.text, other.audio.tobytes())


def test_sixteen_mixed_requests_at_once_give_what_each_gives_alone(client: OmniClient) -> None:
    """What the recorded ones give alone is the oracle's answer, as above."""
    cases = [load_case(name) for name in CASES]
    recorded: list[dict[str, Any]] = [
        {"messages": case.openai_messages(), "voice": case.voice, "sampling": case.sampling()} for case in cases
    ]
    written = (0, 2, 3)
    sampled: list[dict[str, Any]] = []
    for index, voice in enumerate(("ethan", "chelsie", "aiden", "ethan")):
        talker = {"temperature": 0.8, "top_k": 20, "seed": index, "max_tokens": 20 + 7 * index}
        sampling = {"temperature": 0.7 + index / 10, "top_k": 50, "seed": 100 + index, "max_tokens": 8 + index}
        sampled.append(
            {"messages": cases[index].openai_messages(), "voice": voice, "sampling": {**sampling, "talker": talker}}
        )
    alone = [client.chat(**request) for request in sampled]
    requests = [*recorded, *({**recorded[i], "modalities": ["text"]} for i in written), *sampled]
    assert len(requests) == 16
    with ThreadPoolExecutor(16) as pool:
        together = iter(list(pool.map(lambda request: client.chat(**request), requests)))
    for case in cases:
        answer = next(together)
        assert answer.text == case.text
        check_audio(answer, case)
    for i in written:
        answer = next(together)
        assert answer.text == cases[i].text and len(answer.audio) == 0
    for index, (one, many) in enumerate(zip(alone, together, strict=True)):
        assert one.text == many.text, index
        assert one.audio.shape == many.audio.shape, index
        assert np.allclose(one.audio, many.audio, atol=WAVE_TOLERANCE), index


def test_a_text_only_request_never_reaches_the_speech_stages(server: TritonServer, client: OmniClient) -> None:
    def reached(stage: str) -> float:
        return metrics.read(server, "omni_stage_requests_total", pipeline="qwen3_omni", stage=stage)

    metrics.wait_empty(server, "qwen3_omni")
    thinker, *before = map(reached, ("thinker", "talker_ar", "code2wav"))
    answer = client.chat("Hello there.", modalities=["text"], sampling={"max_tokens": 8})
    assert answer.text and len(answer.audio) == 0
    wait_until(lambda: reached("thinker") > thinker, period=0.05)
    metrics.wait_empty(server, "qwen3_omni")
    assert reached("thinker") == thinker + 1
    assert [reached(stage) for stage in ("talker_ar", "code2wav")] == before


def test_the_ways_of_payloads_are_counted(server: TritonServer, client: OmniClient) -> None:
    def sent(way: str) -> float:
        return metrics.read(server, "omni_edge_payloads_total", pipeline="qwen3_omni", way=way)

    metrics.wait_empty(server, "qwen3_omni")
    inline, shm = sent("inline"), sent("shm")
    ask(client, load_case("all"))
    end = time.monotonic() + 5  # counts are written now and then
    while (sent("inline") <= inline or sent("shm") <= shm) and time.monotonic() < end:
        time.sleep(0.1)
    assert sent("inline") > inline and sent("shm") > shm
