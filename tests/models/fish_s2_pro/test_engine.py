"""The engine stage against the plain float64 model: greedy codes, batches, seeds, ends."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from omni_python.models.fish_s2_pro.payloads import SpeechFrames, SpeechPrompt, SpeechResult
from omni_python.models.fish_s2_pro.stages import create_tts_engine
from omni_python.proto.sampling import SamplingParams
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.torch_scheduler import TorchScheduler
from tests.oracle.fish_s2_pro_reference import Reference

GREEDY = SamplingParams(max_tokens=14)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.8, top_k=30, repetition_penalty=1.1, max_tokens=14, ignore_eos=True)
START, CODES, BOOKS = 268, 64, 10


def prompt(seed: int, words: int, voice: int, sampling: SamplingParams = GREEDY) -> SpeechPrompt:
    """Random text before, between and after `voice` frames of a voice."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, CODES, (BOOKS, voice), generator=generator)
    before, after = torch.randint(0, 256, (words,), generator=generator).split([words // 2, words - words // 2])
    return SpeechPrompt(torch.cat((before, codes[0] + START, after)), codes, sampling, stream=True)


@pytest.fixture
def engine(fish: Path) -> Iterator[TorchScheduler[Any]]:
    engine = create_tts_engine(str(fish), kv_tokens=2048, prefill_tokens=64, frames_per_chunk=4)
    engine.start()
    yield engine
    engine.stop()


def run(engine: TorchScheduler[Any], prompts: dict[str, SpeechPrompt]) -> dict[str, tuple[torch.Tensor, SpeechResult]]:
    """All at once; each request's frames [n, books] and end."""
    for request_id, request in prompts.items():
        engine.inbox.put(IncomingMessage(request_id, "new_request", request))
    frames: dict[str, list[torch.Tensor]] = {request_id: [] for request_id in prompts}
    ends: dict[str, SpeechResult] = {}
    while len(ends) < len(prompts):
        try:
            message = engine.outbox.get(timeout=30)
        except queue.Empty:
            pytest.fail("the engine is silent")
        assert message is not None
        match message.data:
            case SpeechFrames(codes):
                assert message.target == "vocoder"
                frames[message.request_id].append(codes)
            case SpeechResult():
                ends[message.request_id] = message.data
            case other:
                raise other
    empty = torch.zeros(0, BOOKS, dtype=torch.int64)
    return {request_id: (torch.cat([empty, *frames[request_id]]), end) for request_id, end in ends.items()}


def test_greedy_codes_are_the_references(engine: TorchScheduler[Any], reference: Reference) -> None:
    """Eight at once, with and without a voice, one of them penalised for what it repeats."""
    penalised = msgspec.structs.replace(GREEDY, repetition_penalty=1.1)
    prompts = {
        f"{seed}": prompt(
            seed, words=5 + 7 * (seed % 8), voice=seed % 3 * 6, sampling=penalised if seed == 5 else GREEDY
        )
        for seed in (0, 5, 12, 13, 15, 17, 20, 22)
    }
    found = run(engine, prompts)
    ended = set()
    for request_id, request in prompts.items():
        penalty = request.sampling.repetition_penalty
        expected = reference.speech(request.tokens.tolist(), request.codes, GREEDY.max_tokens, penalty)
        assert expected.margin > 1e-4, f"prompt {request_id} is too close to call in float32; take another seed"
        frames, end = found[request_id]
        assert frames.tolist() == expected.codes.T.tolist()
        assert end.num_frames == len(frames)
        stopped = expected.tokens[-1] == reference.config["eos_token_id"]
        assert end.finish_reason == ("stop" if stopped else "length")
        ended.add(end.finish_reason)
    assert engine.stats() == {"running": 0, "waiting": 0, "kv_pages": 0}
    assert ended == {"stop", "length"}


def test_a_seed_gives_the_same_speech_in_any_company(engine: TorchScheduler[Any]) -> None:
    def seeded(seed: int) -> SpeechPrompt:
        return prompt(3, 20, 5, msgspec.structs.replace(SAMPLED, seed=seed))

    alone = run(engine, {"a": seeded(1)})["a"][0]
    among = run(engine, {"a": seeded(1), "b": seeded(2), "greedy": prompt(4, 9, 0), "c": seeded(1)})
    assert len(alone) == SAMPLED.max_tokens - 1
    assert torch.equal(among["a"][0], alone) and torch.equal(among["c"][0], alone)
    assert not torch.equal(among["b"][0], alone)


def test_what_was_said_a_moment_ago_is_drawn_anew(engine: TorchScheduler[Any]) -> None:
    """With top_k 1 nothing but the likeliest can be drawn, so repetition-aware sampling changes nothing; with all
    tokens to choose from, the same prompt's cold draw is left wherever it repeats itself."""
    cold = msgspec.structs.replace(SAMPLED, temperature=0.01, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=7)
    likeliest = run(engine, {"k": prompt(6, 12, 0, msgspec.structs.replace(cold, top_k=1, max_tokens=30))})["k"][0]
    codes = likeliest[:, 0].tolist()
    assert any(code in codes[max(0, at - 16) : at] for at, code in enumerate(codes)), (
        "take a prompt that repeats itself"
    )
    free = run(engine, {"f": prompt(6, 12, 0, msgspec.structs.replace(cold, max_tokens=30))})["f"][0][:, 0].tolist()
    first = next(at for at, code in enumerate(codes) if code in codes[max(0, at - 16) : at])
    assert free[:first] == codes[:first]
    assert free != codes


def test_the_end_can_be_ignored(engine: TorchScheduler[Any], reference: Reference) -> None:
    stop = reference.config["eos_token_id"]
    seed = next(
        seed
        for seed in range(200)
        if stop in reference.speech((p := prompt(seed, 6, 0)).tokens.tolist(), p.codes, 6).tokens
    )
    stopped, ignored = prompt(seed, 6, 0), prompt(seed, 6, 0, msgspec.structs.replace(GREEDY, ignore_eos=True))
    found = run(engine, {"stopped": stopped, "ignored": ignored})
    assert found["stopped"][1].finish_reason == "stop"
    assert found["ignored"][1].finish_reason == "length"
    assert len(found["ignored"][0]) == GREEDY.max_tokens - 1
    assert len(found["stopped"][0]) < 6
