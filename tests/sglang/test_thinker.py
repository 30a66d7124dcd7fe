"""The thinker on a real SGLang scheduler, against Hugging Face's modules and against itself."""

from __future__ import annotations

import copy
import importlib.util
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from omni_python.models.qwen3_omni.payloads import ThinkerInput
from omni_python.models.qwen3_omni.stages import create_thinker
from omni_python.models.text.payloads import AnswerToken, DecodeStart
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.sampling import SamplingParams
from omni_python.sglang_engine import launch
from omni_python.sglang_engine.launch import check_version
from tests.models import tiny_model
from tests.models.tiny_model import GREEDY, Conversation, conversation, hf_generate, hf_model
from tests.sglang import child
from tests.sglang.child import Child, Ended

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.timeout(300),
]

MEDIA = [(), ("image",), ("audio",), ("video",), ("audio", "image"), ("image", "video", "audio"), ("image", "image")]
SMALL_KV = 230
"""Slots in which three of the `crowd` fit for as long as SGLang reckons with 70 % of what they may grow by."""

CLEAR = 1e-3
"""A greedy choice by less may fall the other way in another batch; such conversations are not compared."""


@pytest.fixture(scope="module")
def thinker() -> Iterator[Child]:
    with child.child(tiny_model.checkpoint(), "create_thinker", max_running=16, kv_tokens=4096) as process:
        yield process


@pytest.fixture(scope="module")
def small() -> Iterator[Child]:
    """Prompts in pieces of 16 tokens, and so few slots that running requests lose theirs to each other."""
    options = {"max_running": 8, "kv_tokens": SMALL_KV, "prefill_tokens": 16}
    with child.child(tiny_model.checkpoint(), "create_thinker", **options) as process:
        yield process


def talks(count: int, seed: int, **options: object) -> dict[str, Conversation]:
    rng = random.Random(seed)
    hf = hf_model(tiny_model.checkpoint())
    return {
        f"r{n}": conversation(hf, seed + n, rng.choice(MEDIA), words=rng.randint(1, 40), **options)  # type: ignore[arg-type]
        for n in range(count)
    }


def inputs(given: dict[str, Conversation]) -> dict[str, ThinkerInput]:
    return {name: talk.input for name, talk in given.items()}


def check(ended: Ended, talk: Conversation) -> None:
    expected = hf_generate(hf_model(tiny_model.checkpoint()), no_speech(talk))
    assert expected.margin > CLEAR, "choose another seed"
    assert ended.tokens == expected.answer


def no_speech(talk: Conversation) -> Conversation:
    talk = copy.copy(talk)
    talk.input = copy.copy(talk.input)
    talk.input.prompt = copy.copy(talk.input.prompt)
    talk.input.prompt.options = msgspec.structs.replace(talk.input.prompt.options, speech=False)
    return talk


def sampled(given: dict[str, Conversation], **params: object) -> dict[str, ThinkerInput]:
    for n, talk in enumerate(given.values()):
        options = talk.input.prompt.options
        options.thinker = SamplingParams(temperature=0.9, top_p=0.95, seed=n, **params)  # type: ignore[arg-type]
    return inputs(given)


def crowd() -> dict[str, ThinkerInput]:
    """Four requests of 26 tokens, which get 60."""
    hf = hf_model(tiny_model.checkpoint())
    return sampled({f"r{n}": conversation(hf, 400 + n) for n in range(4)}, max_tokens=60, ignore_eos=True)


def test_answers_equal_hugging_face_alone_and_together(thinker: Child) -> None:
    hf = hf_model(tiny_model.checkpoint())
    given = {f"r{seed}": conversation(hf, seed, media) for seed, media in enumerate(MEDIA)}
    given |= {f"s{seed}": conversation(hf, 20 + seed, media, words=5 + 9 * seed) for seed, media in enumerate(MEDIA)}
    given |= {f"t{n}": conversation(hf, 50 + n, turns=3) for n in range(2)}
    assert len(given) == 16
    one = thinker.call(child.alone, inputs(given))
    thinker.call(child.forget)
    many = thinker.call(child.together, inputs(given))
    for name, talk in given.items():
        check(one[name], talk)
        assert many[name].tokens == one[name].tokens


def test_messages_are_those_of_the_torch_engine(thinker: Child) -> None:
    hf = hf_model(tiny_model.checkpoint())
    talk = conversation(hf, 4, ("audio", "image"))
    ended = thinker.call(child.alone, {"a": talk.input})["a"]
    tokens = ended.tokens
    to_decode = [m.data for m in ended.messages if m.target == "decode"]
    to_talker = [m.data for m in ended.messages if m.target == "talker_ar"]
    assert to_decode == [DecodeStart(True, "", [], len(talk.input.prompt.input_ids)), *map(AnswerToken, tokens)]
    assert to_talker[1:] == [AnswerToken(token) for token in tokens[:-1]]
    with torch.inference_mode():  # the shared reference model may have been loaded in it
        hidden = hf.thinker.model(**tiny_model.hf_prompt(hf, talk), output_hidden_states=True).hidden_states
    config = hf.config.thinker_config
    media = torch.isin(
        talk.input.prompt.input_ids,
        torch.tensor([config.image_token_id, config.audio_token_id, config.video_token_id]),
    )
    expected = hidden[hf.config.talker_config.accept_hidden_layer][0][media]
    assert ended.media_hidden is not None
    torch.testing.assert_close(ended.media_hidden, expected, atol=1e-4, rtol=1e-4)


def test_a_prefix_with_a_picture_is_computed_once(thinker: Child) -> None:
    hf = hf_model(tiny_model.checkpoint())
    first, other = conversation(hf, 1, ("image",), words=12), conversation(hf, 1, ("image",), words=12)
    other.input.prompt.input_ids = first.input.prompt.input_ids.clone()
    length = len(first.input.prompt.input_ids)
    changed = length - 8  # a word behind the picture
    other.input.prompt.input_ids[changed] = (other.input.prompt.input_ids[changed] + 1) % 1500
    thinker.call(child.forget)
    ended = thinker.call(child.alone, {"first": first.input, "again": first.input, "other": other.input})
    assert [ended[name].computed for name in ("first", "again", "other")] == [length, 1, length - changed]
    assert [ended[name].found for name in ("first", "again", "other")] == [0, length - 1, changed]
    assert ended["again"].tokens == ended["first"].tokens
    check(ended["first"], first)
    check(ended["other"], other)
    for name in ("again", "other"):
        # What the talker reads at the picture was not computed again either.
        torch.testing.assert_close(ended[name].media_hidden, ended["first"].media_hidden, atol=0, rtol=0)


@pytest.mark.parametrize("changed", ["embeddings", "deepstack", "positions"])
def test_another_picture_is_never_taken_for_this_one(thinker: Child, changed: str) -> None:
    hf = hf_model(tiny_model.checkpoint())
    first, other = conversation(hf, 1, ("image",)), conversation(hf, 1, ("image",))
    vision = other.input.vision
    assert vision is not None and vision.image is not None
    at = int((first.input.prompt.input_ids == hf.config.thinker_config.image_token_id).nonzero()[0])
    if changed == "embeddings":
        vision.image[-1, -1] += 1
    elif changed == "deepstack":
        vision.image_deepstack[1][-1, -1] += 1
    else:
        other.input.prompt.position_ids[2, at + 7] += 1
    thinker.call(child.forget)
    ended = thinker.call(child.alone, {"first": first.input, "other": other.input})
    length = len(first.input.prompt.input_ids)
    assert [ended[name].computed for name in ("first", "other")] == [length, length - at]
    check(ended["other"], other)


def test_seeds_do_not_depend_on_the_batch(thinker: Child) -> None:
    given = sampled(talks(16, 100), max_tokens=14, top_k=40, repetition_penalty=1.1)
    one = thinker.call(child.alone, given)
    thinker.call(child.forget)
    many = thinker.call(child.together, given)
    assert {name: ended.tokens for name, ended in one.items()} == {name: ended.tokens for name, ended in many.items()}
    assert len({tuple(ended.tokens) for ended in one.values()}) == 16


def test_what_ends_an_answer(thinker: Child) -> None:
    hf = hf_model(tiny_model.checkpoint())
    candidates = (conversation(hf, seed, speech=False) for seed in range(200, 400))
    found = next(talk for talk in candidates if 1 < len(hf_generate(hf, talk).answer) < GREEDY.max_tokens)
    until = hf_generate(hf, found).answer
    ignoring, short = copy.deepcopy(found), copy.deepcopy(found)
    ignoring.input.prompt.options.thinker = SamplingParams(max_tokens=len(until) + 3, ignore_eos=True)
    short.input.prompt.options.thinker = SamplingParams(max_tokens=1)
    given = {"stop": found.input, "ignore": ignoring.input, "length": short.input}
    ended = thinker.call(child.alone, given)
    assert ended["stop"].tokens == until and ended["stop"].result.finish_reason == "stop"
    assert len(ended["ignore"].tokens) == len(until) + 3 and ended["ignore"].result.finish_reason == "length"
    assert ended["length"].tokens == until[:1] and ended["length"].result.finish_reason == "length"


def test_what_cannot_fit_is_refused(thinker: Child, small: Child) -> None:
    hf = hf_model(tiny_model.checkpoint())
    long = conversation(hf, 2, thinker=SamplingParams(max_tokens=5000))
    longer = conversation(hf, 2, words=66_000)
    ended = thinker.call(child.together, {"long": long.input, "longer": longer.input})
    for name, message in (("long", "max_tokens of at most 40"), ("longer", "at most 4089 fit")):
        assert isinstance(ended[name].error, InvalidArgument) and message in str(ended[name].error)
    room = SMALL_KV - 2 - len(long.input.prompt.input_ids)
    long.input.prompt.options.thinker = SamplingParams(max_tokens=room, ignore_eos=True)
    assert len(small.call(child.together, {"just": long.input})["just"].tokens) == room
    long.input.prompt.options.thinker = SamplingParams(max_tokens=room + 1)
    assert f"max_tokens of at most {room}" in str(small.call(child.together, {"more": long.input})["more"].error)


@pytest.mark.parametrize("left", range(2, 9))
def test_prompts_as_long_as_the_cache_are_taken_or_refused(small: Child, left: int) -> None:
    """SGLang leaves more room for an answer than it needs; the stage answers all the same, and others after it."""
    hf = hf_model(tiny_model.checkpoint())
    around = len(conversation(hf, 2, words=0).input.prompt.input_ids)
    talk = conversation(hf, 2, words=SMALL_KV - left - around, thinker=SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(talk.input.prompt.input_ids) == SMALL_KV - left
    ended = small.call(child.together, {"long": talk.input})["long"]
    if left < 7:
        assert isinstance(ended.error, InvalidArgument) and f"at most {SMALL_KV - 7} fit" in str(ended.error)
    else:
        assert len(ended.tokens) == 2
    after = conversation(hf, 22)
    check(small.call(child.together, {"after": after.input})["after"], after)


def test_a_request_that_sglang_does_not_accept_fails_alone(small: Child) -> None:
    hf = hf_model(tiny_model.checkpoint())
    refused, good = conversation(hf, 30, words=100), conversation(hf, 31)
    ended = small.call(child.with_longest_input, 60, {"refused": refused.input, "good": good.input})
    assert "SGLang refused a request" in str(ended["refused"].error)
    check(ended["good"], good)
    small.call(child.wait_idle)


def test_answers_to_the_end_of_the_context(tmp_path: Path) -> None:
    """SGLang ends them before it."""
    context, hf = 64, hf_model(tiny_model.checkpoint())
    checkpoint = shutil.copytree(tiny_model.checkpoint(), tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text())
    config["thinker_config"]["text_config"]["max_position_embeddings"] = context
    (checkpoint / "config.json").write_text(json.dumps(config))
    talk = conversation(hf, 400)
    room = context - len(talk.input.prompt.input_ids)
    with child.child(checkpoint, "create_thinker", max_running=4, kv_tokens=1000) as process:
        for asked in (room - 2, room - 1, room, room + 1):
            talk.input.prompt.options.thinker = SamplingParams(max_tokens=asked, ignore_eos=True)
            ended = process.call(child.together, {"long": talk.input})["long"]
            assert len(ended.tokens) == min(asked, room)
            assert ended.result.finish_reason == "length"
        longer = conversation(hf, 400, words=context)
        error = process.call(child.together, {"longer": longer.input})["longer"].error
        assert isinstance(error, InvalidArgument) and f"at most {context - 7} fit" in str(error)
        process.call(child.wait_idle)


def check_broken_requests_fail_alone(process: Child) -> None:
    hf = hf_model(tiny_model.checkpoint())
    good, again = conversation(hf, 22, ("image",)), conversation(hf, 23, ("image",))
    missing, broken = copy.deepcopy(again.input), conversation(hf, 24, ("audio",)).input
    assert missing.vision is not None and missing.vision.image is not None and broken.audio is not None
    missing.vision.image = missing.vision.image[:-1]
    broken.audio.audio[0, 0] = torch.nan
    ended = process.call(child.together, {"good": good.input, "missing": missing, "broken": broken})
    check(ended["good"], good)
    assert "8 image placeholders, but there are 7" in str(ended["missing"].error)
    assert "not a number" in str(ended["broken"].error)
    check(process.call(child.alone, {"again": again.input})["again"], again)


def test_a_request_with_broken_input_fails_alone_and_is_not_remembered(thinker: Child) -> None:
    thinker.call(child.forget)
    check_broken_requests_fail_alone(thinker)


@pytest.mark.parametrize("process", ["thinker", "small"])
@pytest.mark.parametrize("beside", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("moment", ["no room for requests", "no room for tokens", "no memory behind them"])
def test_a_request_that_cannot_be_planned_fails_alone(
    process: str, beside: bool, moment: str, request: pytest.FixtureRequest
) -> None:
    stage: Child = request.getfixturevalue(process)
    hf = hf_model(tiny_model.checkpoint())
    # Neither has more than fits into one piece with the beginnings that both have from the cache.
    first, then = conversation(hf, 31), conversation(hf, 22)
    stage.call(child.alone, {"first": first.input, "then": then.input})
    ended = stage.call(child.with_failing_plan, moment, first.input if beside else None, then.input)
    assert str(ended["then"].error) == moment
    if beside:
        check(ended["first"], first)
    stage.call(child.wait_idle)
    check(stage.call(child.alone, {"then": then.input})["then"], then)


def test_rows_that_a_failed_plan_has_changed_fail_with_it(small: Child) -> None:
    hf = hf_model(tiny_model.checkpoint())
    first, then = conversation(hf, 31), conversation(hf, 22)
    small.call(child.alone, {"first": first.input, "then": then.input})
    ended = small.call(child.with_failing_plan, "no memory to mix", first.input, then.input)
    assert {str(one.error) for one in ended.values()} == {"no memory to mix"}
    small.call(child.wait_idle)
    check(small.call(child.alone, {"first": first.input})["first"], first)


def test_rows_that_cannot_go_on_fail(small: Child) -> None:
    talk = conversation(hf_model(tiny_model.checkpoint()), 22)
    small.call(child.alone, {"then": talk.input})
    ended = small.call(child.with_failing_plan, "no room to go on", None, talk.input)
    assert str(ended["then"].error) == "no room to go on"
    small.call(child.wait_idle)


def test_all_that_wait_for_room_get_their_turn_where_those_before_them_fail(small: Child) -> None:
    ended = small.call(child.with_failing_sampler, crowd())
    assert {str(one.error) for one in ended.values()} == {"the sampler failed"}


def test_prompts_in_pieces_give_the_same(small: Child) -> None:
    given = talks(6, 300)
    ended = small.call(child.alone, inputs(given))
    for name, talk in given.items():
        check(ended[name], talk)
        hidden = ended[name].media_hidden
        assert (hidden is None) == (talk.input.vision is None and talk.input.audio is None)


def test_requests_that_lose_their_slots_to_others_go_on_where_they_were(small: Child) -> None:
    given = crowd()
    one = small.call(child.alone, given)
    before = small.call(child.retractions)
    many = small.call(child.together, given)
    assert small.call(child.retractions) > before
    for name in given:
        assert many[name].tokens == one[name].tokens


@pytest.mark.parametrize("process", ["thinker", "small"])
def test_aborts_at_random_leave_nothing(process: str, request: pytest.FixtureRequest) -> None:
    stage: Child = request.getfixturevalue(process)
    rng = random.Random()
    given = talks(20, 500)
    aborts = {name: rng.random() * 0.4 for name in rng.sample(sorted(given), 12)}
    ended = stage.call(child.with_aborts, inputs(given), aborts)
    stage.call(child.wait_idle)
    for name in set(given) - set(aborts):
        check(ended[name], given[name])


def test_a_process_has_one_such_stage(small: Child) -> None:
    with pytest.raises(OmniError, match="only one stage of a process"):
        small.call(child.second_stage, str(tiny_model.checkpoint()))


def test_other_versions_and_engines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_version()
    monkeypatch.setattr(launch, "SUPPORTED", ("0.4.1", "0.4.2"))
    with pytest.raises(OmniError, match=r"works with sglang 0.4.1 or 0.4.2, but 0.5.17 is installed"):
        check_version()
    with pytest.raises(InvalidArgument, match="engine 'vllm' is not known; valid: torch, sglang"):
        create_thinker(str(tiny_model.checkpoint()), engine="vllm")  # type: ignore[arg-type]
