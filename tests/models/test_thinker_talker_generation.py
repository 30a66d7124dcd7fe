"""Whole answers through the real schedulers, against Hugging Face's modules called stage after stage."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import torch

from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.qwen3_omni.payloads import Prompt, ThinkerInput
from omni_python.models.text.options import GenerationOptions
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.sampling import SamplingParams
from tests.models import tiny_model
from tests.models.tiny_model import (
    GREEDY,
    GREEDY_TALKER,
    Conversation,
    Generation,
    conversation,
    hf_generate,
    hf_model,
)
from tests.models.wired_stages import Answer, WiredStages
from tests.oracle import cases

CLEAR = 1e-3
"""A greedy choice by less may fall the other way in another batch; such conversations are not compared."""


@pytest.fixture(scope="module")
def stages() -> Iterator[WiredStages]:
    with WiredStages(tiny_model.checkpoint()) as wired:
        yield wired


def finish(answer: Answer) -> Answer:
    assert answer.done.wait(60)
    if answer.error is not None:
        raise answer.error
    return answer


def check(answer: Answer, talk: Conversation) -> None:
    check_equal(answer, hf_generate(hf_model(tiny_model.checkpoint()), talk))


def check_equal(answer: Answer, expected: Generation) -> None:
    assert expected.margin > CLEAR, "choose another seed"
    finish(answer)
    assert answer.tokens == expected.answer
    assert answer.codes == expected.codes.tolist()
    assert answer.waveform.shape == expected.waveform.shape
    np.testing.assert_allclose(answer.waveform, expected.waveform, atol=1e-4)


MEDIA = [(), ("image",), ("audio",), ("video",), ("audio", "image"), ("image", "video", "audio"), ("image", "image")]


def test_answers_equal_hugging_face_alone(stages: WiredStages) -> None:
    hf = hf_model(tiny_model.checkpoint())
    for seed, media in enumerate(MEDIA):
        expected = hf_generate(hf, conversation(hf, seed, media))
        for stream in (True, False):
            talk = conversation(hf, seed, media, stream=stream)
            check_equal(stages.submit(f"alone-{stream}-{seed}", talk.input), expected)


def test_answers_equal_hugging_face_together(stages: WiredStages) -> None:
    hf = hf_model(tiny_model.checkpoint())
    talks = [
        conversation(hf, 20 + seed, media, words=5 + 9 * seed, turns=1 + seed % 3) for seed, media in enumerate(MEDIA)
    ]
    answers = [stages.submit(f"together-{n}", talk.input) for n, talk in enumerate(talks)]
    for talk, answer in zip(talks, answers, strict=True):
        check(answer, talk)


@pytest.mark.parametrize("max_tokens", [2, 3, 4])
def test_short_answers_are_spoken(stages: WiredStages, max_tokens: int) -> None:
    sampling = msgspec.structs.replace(GREEDY, max_tokens=max_tokens)
    talk = conversation(hf_model(tiny_model.checkpoint()), 31, thinker=sampling)
    check(stages.submit(f"short-{max_tokens}", talk.input), talk)


def test_an_answer_of_one_token_is_silent(stages: WiredStages) -> None:
    """Hugging Face fails on it: the only token is never read by the thinker, so there is nothing to speak."""
    sampling = msgspec.structs.replace(GREEDY, max_tokens=1)
    talk = conversation(hf_model(tiny_model.checkpoint()), 31, thinker=sampling)
    answer = finish(stages.submit("one", talk.input))
    assert len(answer.tokens) == 1
    assert answer.waveform.shape == (0,)
    assert answer.audio_end is not None and answer.audio_end.finish_reason == "stop"


def test_the_talker_length_limit_loses_the_last_frame(stages: WiredStages) -> None:
    hf = hf_model(tiny_model.checkpoint())
    for max_tokens in (1, 2, 7):
        talk = conversation(hf, 1, ("image",), talker=msgspec.structs.replace(GREEDY_TALKER, max_tokens=max_tokens))
        answer = stages.submit(f"length-{max_tokens}", talk.input)
        check(answer, talk)
        assert len(answer.codes) == max_tokens - 1
        assert answer.audio_end is not None and answer.audio_end.finish_reason == "length"


@pytest.mark.parametrize("name", ["text", "text_stop"])
def test_recorded_generations_are_met(stages: WiredStages, name: str) -> None:
    """Recorded with Hugging Face's own `generate`."""
    case = cases.load_case(name)
    options = GenerationOptions(
        SamplingParams(max_tokens=case.thinker_max_tokens),
        SamplingParams(max_tokens=case.talker_max_tokens, repetition_penalty=1.05),
        speech=True,
        voice=case.voice,
        stream=True,
    )
    prompt = Prompt(torch.from_numpy(case.input_ids), torch.from_numpy(case.position_ids), case.rope_delta, options)
    answer = finish(stages.submit(f"recorded-{name}", ThinkerInput(prompt)))
    assert answer.tokens == case.answer.tolist()
    assert answer.codes == case.codes.T.tolist()
    assert answer.waveform.shape == case.waveform.shape
    np.testing.assert_allclose(answer.waveform, case.waveform, atol=1e-4)
    assert answer.text_end is not None and answer.text_end.finish_reason == case.answer_ends
    assert answer.audio_end is not None and answer.audio_end.finish_reason == case.speech_ends
    assert "".join(answer.text) == case.text


def test_text_alone_never_reaches_the_speech_stages(stages: WiredStages) -> None:
    talk = conversation(hf_model(tiny_model.checkpoint()), 3, speech=False)
    answer = finish(stages.submit("text-only", talk.input))
    assert answer.text_end is not None
    assert answer.text_end.num_input_tokens == len(talk.input.prompt.input_ids)
    assert answer.text_end.num_output_tokens == len(answer.tokens)
    assert not answer.audio and not answer.codes
    text = load_tokenizer(tiny_model.checkpoint()).decode(answer.tokens, skip_special_tokens=True)
    assert "".join(answer.text) == text


def test_stop_strings_end_the_answer_and_are_cut(stages: WiredStages) -> None:
    hf = hf_model(tiny_model.checkpoint())
    whole = "".join(finish(stages.submit("unstopped", conversation(hf, 3, speech=False).input)).text)
    for at in (0, 3, len(whole) // 2):
        stop = whole[at : at + 3]
        sampling = msgspec.structs.replace(GREEDY, stop=["not there", stop])
        answer = finish(stages.submit(f"stop-{at}", conversation(hf, 3, speech=False, thinker=sampling).input))
        assert "".join(answer.text) == whole[: whole.find(stop)]
        assert answer.text_end is not None and answer.text_end.finish_reason == "stop"
        assert len(answer.tokens) < GREEDY.max_tokens or whole.find(stop) + 3 > len(whole) - 8


def test_ignore_eos_goes_on_to_the_limit(stages: WiredStages) -> None:
    case = cases.load_case("text_stop")
    assert case.answer_ends == "stop"
    limit = len(case.answer) + 5
    options = GenerationOptions(SamplingParams(max_tokens=limit, ignore_eos=True), GREEDY_TALKER, False, "Ethan", False)
    prompt = Prompt(torch.from_numpy(case.input_ids), torch.from_numpy(case.position_ids), case.rope_delta, options)
    answer = finish(stages.submit("ignore", ThinkerInput(prompt)))
    assert len(answer.tokens) == limit
    assert answer.tokens[: len(case.answer)] == case.answer.tolist()


def test_seeded_sampling_does_not_depend_on_the_batch(stages: WiredStages) -> None:
    hf = hf_model(tiny_model.checkpoint())

    def seeded(seed: int) -> Conversation:
        thinker = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.1, seed=seed, max_tokens=9)
        talker = SamplingParams(temperature=0.9, top_k=50, repetition_penalty=1.05, seed=seed + 1, max_tokens=12)
        return conversation(hf, 5, ("audio",), thinker=thinker, talker=talker)

    alone = [finish(stages.submit(f"seed-alone-{seed}", seeded(seed).input)) for seed in range(3)]
    company = [stages.submit(f"mate-{n}", conversation(hf, 40 + n, words=3 + 20 * n).input) for n in range(2)]
    together = [stages.submit(f"seed-together-{seed}", seeded(seed).input) for seed in range(3)]
    for one, other in zip(alone, together, strict=True):
        finish(other)
        assert one.tokens == other.tokens
        assert one.codes == other.codes
    assert len({tuple(answer.tokens) for answer in alone}) > 1
    for mate in company:
        finish(mate)


def test_joining_and_leaving_at_random_changes_nobody(stages: WiredStages) -> None:
    """Requests come and are aborted at random times; those that are left give what they give alone."""
    hf = hf_model(tiny_model.checkpoint())
    rng = random.Random(7)
    talks = {
        f"join-{n}": conversation(hf, 60 + n, rng.choice(MEDIA), words=rng.randint(1, 40), stream=rng.random() < 0.5)
        for n in range(12)
    }
    answers: dict[str, Answer] = {}
    for request_id, talk in talks.items():
        answers[request_id] = stages.submit(request_id, talk.input)
        time.sleep(rng.random() * 0.02)
        if rng.random() < 0.33 and (victim := rng.choice(list(answers))) in answers:
            stages.abort(victim)
            del answers[victim]
    assert len(answers) > 4
    for request_id, answer in answers.items():
        expected = hf_generate(hf, talks[request_id])
        finish(answer)
        if expected.margin > CLEAR:
            assert (answer.tokens, answer.codes) == (expected.answer, expected.codes.tolist())
            np.testing.assert_allclose(answer.waveform, expected.waveform, atol=1e-4)
    assert_idle(stages)


def test_aborts_at_random_times_free_everything(stages: WiredStages) -> None:
    hf = hf_model(tiny_model.checkpoint())
    rng = random.Random(3)
    for n in range(10):
        stages.submit(f"abort-{n}", conversation(hf, n, rng.choice(MEDIA)).input)
        time.sleep(rng.random() * 0.05)
        stages.abort(f"abort-{n}")
    stages.abort("never seen")
    assert_idle(stages)
    talk = conversation(hf, 2)
    check(stages.submit("abort-3", talk.input), talk)


def test_what_can_never_fit_is_refused(stages: WiredStages) -> None:
    talk = conversation(hf_model(tiny_model.checkpoint()), 2, thinker=SamplingParams(max_tokens=5000))
    with pytest.raises(InvalidArgument, match=r"max_tokens of at most 20\d\d"):
        finish(stages.submit("too-long", talk.input))


def test_an_unknown_voice_is_refused(stages: WiredStages) -> None:
    talk = conversation(hf_model(tiny_model.checkpoint()), 2)
    talk.input.prompt.options.voice = "nobody"
    with pytest.raises(InvalidArgument, match="aiden, chelsie, ethan"):
        finish(stages.submit("voice", talk.input))
    stages.abort("voice")
    assert_idle(stages)


def test_a_request_with_broken_input_fails_alone(stages: WiredStages) -> None:
    hf = hf_model(tiny_model.checkpoint())
    good = conversation(hf, 22, ("image",))
    missing = conversation(hf, 23, ("image",)).input
    assert missing.vision is not None and missing.vision.image is not None
    missing.vision.image = missing.vision.image[:-1]
    broken = conversation(hf, 24, ("audio",)).input
    assert broken.audio is not None
    broken.audio.audio[0, 0] = torch.nan
    answers = [stages.submit(f"broken-{n}", request) for n, request in enumerate((good.input, missing, broken))]
    check(answers[0], good)
    with pytest.raises(Exception, match="8 image placeholders, but there are 7"):
        finish(answers[1])
    with pytest.raises(Exception, match="not a number"):
        finish(answers[2])
    # Whoever gets the failed request's pages next must not see what was in them.
    again = [conversation(hf, seed) for seed in (25, 26, 27, 28)]
    for talk, answer in [(t, stages.submit(f"after-{n}", t.input)) for n, t in enumerate(again)]:
        check(answer, talk)
    for n in range(3):
        stages.abort(f"broken-{n}")
    assert_idle(stages)


def assert_idle(stages: WiredStages) -> None:
    deadline = time.monotonic() + 20
    while any(stages.stats().values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(stages.stats().values()), stages.stats()
