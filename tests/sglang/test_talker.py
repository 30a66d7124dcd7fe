"""The talker on a real SGLang scheduler against the one on plain torch; the latter is tested against Hugging Face."""

from __future__ import annotations

import importlib.util
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from omni_python.models.qwen3_omni import stages
from omni_python.models.qwen3_omni.payloads import CodecFrames, TalkerPrompt
from omni_python.models.text.payloads import AnswerToken
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.sampling import SamplingParams
from omni_python.proto.work import IncomingMessage
from tests.models import tiny_model
from tests.models.tiny_model import conversation, hf_model
from tests.sglang import child
from tests.sglang.child import Child, Speech

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def talker() -> Iterator[Child]:
    with child.child(tiny_model.checkpoint(), "create_talker", max_running=8, kv_tokens=1000) as process:
        yield process


def speeches(count: int, seed: int) -> dict[str, Speech]:
    """Half of them with media, half of them sampled."""
    hf = hf_model(tiny_model.checkpoint())
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for n in range(count):
        media = rng.choice([(), (), ("image",), ("audio",), ("image", "audio")])
        prompt = conversation(hf, seed + n, media, words=rng.randint(1, 30)).input.prompt
        config = hf.config.thinker_config
        ids = torch.tensor([config.image_token_id, config.audio_token_id])
        size = (int(torch.isin(prompt.input_ids, ids).sum()), config.text_config.hidden_size)
        hidden = torch.randn(size, generator=generator)
        sampling = SamplingParams(max_tokens=rng.randint(5, 40), repetition_penalty=1.05)
        if n % 2:
            sampling = msgspec.structs.replace(sampling, temperature=0.9, top_k=50, seed=n)
        answer = [rng.randrange(1500) for _ in range(rng.randint(4, 12))]
        given = TalkerPrompt(prompt.input_ids, prompt.position_ids, hidden if media else None, "Ethan", sampling, True)
        made[f"s{n}"] = Speech(given, answer)
    return made


def on_torch(given: dict[str, Speech]) -> dict[str, list[list[int]]]:
    """The codec frames that the torch engine makes."""
    stage = stages.create_talker(str(tiny_model.checkpoint()), engine="torch", kv_tokens=4096)
    codes: dict[str, list[list[int]]] = {name: [] for name in given}
    for name, speech in given.items():
        stage.inbox.put(IncomingMessage(name, "stream_chunk", speech.prompt))
        for token in speech.answer:
            stage.inbox.put(IncomingMessage(name, "stream_chunk", AnswerToken(token)))
        stage.inbox.put(IncomingMessage(name, "stream_done"))
    stage.start()
    left = len(given)
    while left:
        message = stage.outbox.get(timeout=30)
        assert message is not None and message.type != "error", message
        if isinstance(message.data, CodecFrames):
            codes[message.request_id] += message.data.codes.tolist()
        left -= message.type == "result"
    stage.stop()
    return codes


def test_speech_equals_that_of_the_torch_engine(talker: Child) -> None:
    given = speeches(12, 10)
    ended = talker.call(child.speak, given)
    assert {name: one.codes for name, one in ended.items()} == on_torch(given)
    assert sum(len(one.codes) for one in ended.values()) > 60


def test_rows_without_text_wait_and_hold_up_nobody(talker: Child) -> None:
    given = speeches(6, 40)
    expected = on_torch(given)
    assert all(len(expected[name]) > 4 for name in ("s0", "s3")), "choose another seed"
    for name, late in (("s0", len(given["s0"].answer) - 2), ("s3", len(given["s3"].answer))):
        given[name].late = late
    waiting = {name: given[name] for name in ("s0", "s3")}
    ended = talker.call(child.speak, given)
    assert {name: ended[name].codes for name in ended} == {name: expected[name] for name in set(given) - set(waiting)}
    again = {f"again-{name}": speech for name, speech in speeches(6, 40).items()}
    for name, one in talker.call(child.speak, again).items():  # beside those that wait
        assert one.codes == expected[name.removeprefix("again-")]
    last = talker.call(child.more, waiting)
    # The first frames of s0 came, and were dropped, while others were collected.
    for name in waiting:
        assert last[name].codes == expected[name][len(expected[name]) - len(last[name].codes) :]
        assert len(last[name].codes) >= len(expected[name]) - 2
    talker.call(child.wait_idle)


def test_what_never_fits_is_refused(talker: Child) -> None:
    speech = speeches(1, 60)["s0"]
    speech.prompt.sampling = SamplingParams(max_tokens=2000)
    error = talker.call(child.speak, {"long": speech})["long"].error
    assert isinstance(error, InvalidArgument) and "max_tokens of at most 9" in str(error)


def test_aborts_at_random_leave_nothing(talker: Child) -> None:
    rng = random.Random()
    given = speeches(16, 80)
    aborts = {name: rng.random() * 0.4 for name in rng.sample(sorted(given), 8)}
    expected = on_torch(given)
    for name in list(aborts)[:4]:
        given[name].late = len(given[name].answer) // 2
    ended = talker.call(child.speak_with_aborts, given, aborts)
    for name in set(given) - set(aborts):
        assert ended[name].codes == expected[name]


def test_random_weights_in_bfloat16_speak(tmp_path: Path) -> None:
    """A directory without weights: the config alone is read."""
    shutil.copy(tiny_model.checkpoint() / "config.json", tmp_path)
    given = speeches(3, 90)
    for speech in given.values():
        speech.prompt.sampling = msgspec.structs.replace(speech.prompt.sampling, ignore_eos=True)
    options = {"load_format": "dummy", "dtype": "bfloat16", "max_running": 8, "kv_tokens": 1000}
    with child.child(tmp_path, "create_talker", **options) as process:
        ended = process.call(child.speak, given)
        process.call(child.wait_idle)
    for name, speech in given.items():
        assert len(ended[name].codes) == speech.prompt.sampling.max_tokens - 1
    assert len({tuple(frame) for one in ended.values() for frame in one.codes}) > 10
