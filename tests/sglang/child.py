"""A process of its own for a stage on SGLang, which leaves its state all over a process. Functions run in the child."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from omni_python.models.qwen3_omni import stages
from omni_python.models.qwen3_omni.payloads import CodecFrames, TalkerPrompt, ThinkerInput
from omni_python.models.text.payloads import AnswerToken, ThinkerResult
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.omni_scheduler import OmniScheduler
from omni_python.sglang_engine import followers

T = TypeVar("T")
_stage: OmniScheduler[Any]
_forks = get_context("forkserver")
_forks.set_forkserver_preload(["tests.sglang.preloaded"])


@dataclass
class Ended:
    """All that a request gave; `computed` prompt tokens went through the model while it ran, `found` ones are told as
    found in the cache."""

    messages: list[OutgoingMessage] = field(default_factory=list)
    computed: int = 0
    found: int = 0

    @property
    def error(self) -> Exception | None:
        return next((m.data for m in self.messages if m.type == "error"), None)

    @property
    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.messages[-1].data

    @property
    def tokens(self) -> list[int]:
        assert isinstance(self.result, ThinkerResult)
        return self.result.output_ids

    @property
    def codes(self) -> list[list[int]]:
        assert self.error is None, self.error
        return [frame for m in self.messages if isinstance(m.data, CodecFrames) for frame in m.data.codes.tolist()]

    @property
    def media_hidden(self) -> torch.Tensor | None:
        [prompt] = [m.data for m in self.messages if isinstance(m.data, TalkerPrompt)]
        return prompt.media_hidden


class Child:
    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def call(self, function: Callable[..., T], *args: Any) -> T:
        return self._pool.submit(function, *args).result(timeout=200)


@contextmanager
def child(checkpoint: Path, stage: str, **options: Any) -> Iterator[Child]:
    """`stage` is the name of its factory, for example "create_thinker"."""
    with ProcessPoolExecutor(1, _forks, _start, (str(checkpoint), stage, options)) as pool:
        yield Child(pool)


def _start(checkpoint: str, stage: str, options: Mapping[str, Any]) -> None:
    global _stage
    torch.set_num_threads(1)
    made = getattr(stages, stage)(checkpoint, engine="sglang", **options)
    assert isinstance(made, OmniScheduler)
    _stage = made
    _stage.start()


def forget() -> None:
    """Empty the radix cache of an idle stage."""
    wait_idle()
    _stage.engine.reset_cache()


def wait_idle() -> None:
    deadline = time.monotonic() + 20
    while any(_stage.stats().values()):
        assert time.monotonic() < deadline, _stage.stats()
        time.sleep(0.002)


def together(requests: Mapping[str, ThinkerInput]) -> dict[str, Ended]:
    """Submit all at once; every message of each."""
    submit(requests)
    return collect(set(requests))


def submit(requests: Mapping[str, ThinkerInput]) -> None:
    for name, request in requests.items():
        _stage.inbox.put(IncomingMessage(name, "new_request", request))


def alone(requests: Mapping[str, ThinkerInput]) -> dict[str, Ended]:
    """One after the other."""
    ended = {}
    for name, request in requests.items():
        before, use = _stage.engine.computed_tokens, _stage.kv_use()
        ended.update(together({name: request}))
        wait_idle()
        ended[name].computed = _stage.engine.computed_tokens - before
        ended[name].found = _stage.kv_use().hits - use.hits
        assert _stage.kv_use().queries - use.queries == ended[name].computed + ended[name].found
    return ended


def profiled(path: Path, requests: Mapping[str, ThinkerInput]) -> None:
    """Submit all again and again while the other ranks are profiled, for longer than the machine pauses."""
    _stage.profile_others(path, 3.0)
    end = time.monotonic() + 3.0
    while True:
        together(requests)
        wait_idle()
        if time.monotonic() >= end:
            return


def with_aborts(requests: Mapping[str, ThinkerInput], aborts: Mapping[str, float]) -> dict[str, Ended]:
    """Submit all at once; those in `aborts` are aborted after so many seconds."""
    submit(requests)
    start = time.monotonic()
    for name, delay in sorted(aborts.items(), key=lambda item: item[1]):
        time.sleep(max(0.0, start + delay - time.monotonic()))
        _stage.abort(name)
    ended = collect(set(requests) - set(aborts))
    wait_idle()
    return ended


def with_failing_sampler(requests: Mapping[str, ThinkerInput]) -> dict[str, Ended]:
    """As `together`, while the stage's runner cannot choose tokens."""

    def fail(*args: Any) -> None:
        raise ValueError("the sampler failed")

    runner = _stage._runner
    runner.advance = fail  # type: ignore[method-assign, assignment]
    try:
        return together(requests)
    finally:
        wait_idle()
        del runner.advance


def with_failing_plan(moment: str, first: ThinkerInput | None, then: ThinkerInput) -> dict[str, Ended]:
    """The request "then", of which SGLang fails to plan a step, once. Where there is a "first", it runs by then."""
    from sglang.srt.managers import schedule_batch
    from sglang.srt.mem_cache import allocation

    owners: dict[str, tuple[Any, str]] = {
        "no room for requests": (allocation, "alloc_req_slots"),
        "no room for tokens": (allocation, "alloc_token_slots"),
        "no memory behind them": (schedule_batch.SamplingBatchInfo, "from_schedule_batch"),
        "no room to go on": (allocation, "alloc_token_slots"),
        "no memory to mix": (schedule_batch.ScheduleBatch, "mix_with_running"),
    }
    owner, name = owners[moment]
    known = getattr(owner, name)
    calls = {"no room to go on": 1, "no memory to mix": 0}.get(moment, int(first is not None))

    def plan(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls -= 1
        if calls < 0:
            setattr(owner, name, known)
            raise RuntimeError(moment)
        return known(*args, **kwargs)

    runner = _stage._runner
    advance = runner.advance

    def advance_first(*args: Any) -> None:
        del runner.advance
        submit({"then": then})
        advance(*args)

    setattr(owner, name, plan)
    if first is None:
        return together({"then": then})
    runner.advance = advance_first  # type: ignore[method-assign, assignment]
    submit({"first": first})
    return collect({"first", "then"})


def with_longest_input(tokens: int, requests: Mapping[str, ThinkerInput]) -> dict[str, Ended]:
    """As `together`, while SGLang takes prompts of fewer than `tokens` tokens, and the stage knows nothing of it."""
    engine = _stage.engine
    known, taken = type(engine).longest_prompt, engine._scheduler.max_req_input_len
    longest = engine.longest_prompt
    type(engine).longest_prompt = property(lambda self: longest)  # type: ignore[method-assign, assignment]
    engine._scheduler.max_req_input_len = tokens
    try:
        return together(requests)
    finally:
        engine._scheduler.max_req_input_len = taken
        type(engine).longest_prompt = known  # type: ignore[method-assign]


def collect(names: set[str]) -> dict[str, Ended]:
    """Messages until each of `names` has ended; those of others are dropped, as a stage does after an abort."""
    ended = {name: Ended() for name in names}
    left = set(names)
    while left:
        message = _stage.outbox.get(timeout=30)
        assert message is not None
        if message.request_id in ended:
            ended[message.request_id].messages.append(message)
            if message.type != "stream":
                left.discard(message.request_id)
    return ended


def write_why(path: Path) -> None:
    """From now on the process writes to `path` why it ends."""

    def end(reason: str) -> None:
        path.write_text(reason)
        os.kill(os.getpid(), signal.SIGKILL)

    _stage.on_broken = end


def set_limit(name: str, seconds: float) -> None:
    """One of those of `followers`."""
    assert hasattr(followers, name)
    setattr(followers, name, seconds)


def step_alone(requests: Mapping[str, ThinkerInput]) -> None:
    """Submit requests of whose steps the other ranks are not told."""
    _stage.engine._followers.send = lambda message: None  # type: ignore[attr-defined]
    submit(requests)


def retractions() -> int:
    """How often a running request lost its slots so far."""
    return _stage.engine.retractions


@dataclass
class Speech:
    """What the talker reads: its prompt and the answer's tokens, the last `late` of which come with `more`."""

    prompt: TalkerPrompt
    answer: list[int]
    late: int = 0


def speak(requests: Mapping[str, Speech]) -> dict[str, Ended]:
    """Everything that was said at once; requests with late tokens are ended by `more`."""
    for name, speech in requests.items():
        say(name, speech)
    return collect({name for name, speech in requests.items() if not speech.late})


def more(requests: Mapping[str, Speech]) -> dict[str, Ended]:
    """The late tokens of requests that wait for them; what they gave before is still to be collected."""
    for name, speech in requests.items():
        end(name, speech.answer[len(speech.answer) - speech.late :])
    return collect(set(requests))


def speak_with_aborts(requests: Mapping[str, Speech], aborts: Mapping[str, float]) -> dict[str, Ended]:
    for name, speech in requests.items():
        say(name, speech)
    start = time.monotonic()
    for name, delay in sorted(aborts.items(), key=lambda item: item[1]):
        time.sleep(max(0.0, start + delay - time.monotonic()))
        _stage.abort(name)
    ended = collect({name for name, speech in requests.items() if name not in aborts and not speech.late})
    wait_idle()
    return ended


def say(name: str, speech: Speech) -> None:
    _stage.inbox.put(IncomingMessage(name, "stream_chunk", speech.prompt))
    for token in speech.answer[: len(speech.answer) - speech.late]:
        _stage.inbox.put(IncomingMessage(name, "stream_chunk", AnswerToken(token)))
    if not speech.late:
        end(name, [])


def end(name: str, tokens: list[int]) -> None:
    for token in tokens:
        _stage.inbox.put(IncomingMessage(name, "stream_chunk", AnswerToken(token)))
    _stage.inbox.put(IncomingMessage(name, "stream_done"))


def second_stage(checkpoint: str) -> None:
    stages.create_talker(checkpoint, engine="sglang")
