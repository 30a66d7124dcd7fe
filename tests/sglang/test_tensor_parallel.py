"""Stages on two ranks, which find each other over gloo on the CPU, against the oracle and against one rank."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
import torch

from omni_python.client import Answer, OmniClient, OmniClientError
from omni_python.config.compile import compile_pipeline
from omni_python.config.resolve import check_imports
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.models.qwen3_omni.stages import create_thinker
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer
from omni_python.sglang_engine.config import EngineConfig
from omni_python.sglang_engine.followers import SILENCE, Followers, RankGroup
from omni_python.sglang_engine.rank_messages import SIGN_PERIOD
from tests.conftest import LeakCheck
from tests.e2e import metrics
from tests.faults.tracing import Traced
from tests.models import tiny_model
from tests.models.tiny_model import conversation, hf_model
from tests.oracle.cases import CASES, load_case
from tests.sglang import child
from tests.sglang.child import Child
from tests.sglang.test_thinker import MEDIA, SMALL_KV, check, check_broken_requests_fail_alone, crowd, inputs, talks

T = TypeVar("T")

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def thinker() -> Iterator[Child]:
    """Prompts in pieces of 16 tokens, and so few slots that running requests lose theirs to each other."""
    options = {"max_running": 8, "kv_tokens": SMALL_KV, "prefill_tokens": 16, "tp_size": 2}
    with child.child(tiny_model.checkpoint(), "create_thinker", **options) as process:
        yield process


def test_answers_equal_hugging_face(thinker: Child) -> None:
    hf = hf_model(tiny_model.checkpoint())
    given = {f"r{seed}": conversation(hf, seed, media) for seed, media in enumerate(MEDIA)}
    one = thinker.call(child.alone, inputs(given))
    many = thinker.call(child.together, inputs(given))  # most of each prompt is in the cache by now
    for name, talk in given.items():
        check(one[name], talk)
        assert many[name].tokens == one[name].tokens
        hidden = one[name].media_hidden
        assert (hidden is None) == (talk.input.vision is None and talk.input.audio is None)


def test_ranks_stay_together_where_rows_lose_their_slots(thinker: Child) -> None:
    given = crowd()
    before = thinker.call(child.retractions)
    one, other = thinker.call(child.together, given), thinker.call(child.together, dict(reversed(given.items())))
    assert thinker.call(child.retractions) > before
    assert all(len(ended.tokens) == 60 for ended in one.values())
    assert {name: ended.tokens for name, ended in one.items()} == {name: ended.tokens for name, ended in other.items()}


def test_aborts_at_random_leave_nothing(thinker: Child) -> None:
    rng = random.Random()
    given = talks(16, 500)
    aborts = {name: rng.random() * 2 for name in rng.sample(sorted(given), 10)}
    ended = thinker.call(child.with_aborts, inputs(given), aborts)
    for name in set(given) - set(aborts):
        check(ended[name], given[name])


def test_a_request_that_fails_on_rank_0_fails_alone(thinker: Child) -> None:
    check_broken_requests_fail_alone(thinker)


def test_a_step_that_fails_on_rank_0_ends_its_requests_alone(thinker: Child) -> None:
    given = talks(2, 600)
    failed = thinker.call(child.with_failing_sampler, inputs(given))
    assert {str(ended.error) for ended in failed.values()} == {"the sampler failed"}
    ended = thinker.call(child.together, inputs(given))
    for name, talk in given.items():
        check(ended[name], talk)


def test_a_profile_of_rank_0_has_one_of_each_follower_beside_it(thinker: Child, tmp_path: Path) -> None:
    thinker.call(child.profiled, tmp_path / "x.trace.json", inputs(talks(2, 700)))
    # The profiler writes beside it first, with one more suffix.
    [path] = wait_for(lambda: list(tmp_path.glob("*.json")))
    assert path.name.startswith("x.") and path.name.endswith("_tp1.trace.json")
    events = wait_for(lambda: read_trace(path))
    assert sum(str(event.get("name", "")).startswith("aten::") for event in events) > 100


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Its events; none while it is being written."""
    try:
        events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
    except ValueError:
        return []
    return events


def wait_for(look: Callable[[], list[T]]) -> list[T]:
    end = time.monotonic() + 30
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def test_ranks_that_are_stopped_together_go_on(thinker: Child) -> None:
    """For longer than a follower may be silent: nobody could hear it meanwhile."""
    thinker.call(child.set_limit, "SILENCE", 3.0)
    ranks = ranks_of(thinker)
    for rank in ranks:
        rank.suspend()
    time.sleep(4)
    for rank in reversed(ranks):
        rank.resume()
    given = talks(1, 1000)
    check(thinker.call(child.together, inputs(given))["r0"], given["r0"])
    assert ranks_of(thinker) == ranks
    thinker.call(child.set_limit, "SILENCE", SILENCE)


def test_followers_die_with_rank_0(thinker: Child) -> None:
    """Also where rank 0 has no chance to tell them, and all of them are stopped. The last test of this process."""
    ranks = ranks_of(thinker)
    for rank in ranks:
        rank.suspend()
    ranks[0].kill()
    wait_gone(ranks, 10)


FOLLOWER = "rank 1 (process thinker_tp1)"


def ranks_of(stage: Child) -> list[psutil.Process]:
    rank_0 = psutil.Process(stage.call(os.getpid))
    return [rank_0, *(found for found in rank_0.children() if is_named(found, "thinker_tp1"))]


def wait_gone(ranks: list[psutil.Process], timeout: float) -> None:
    """Nobody may reap a follower whose rank 0 is gone."""
    assert len(ranks) == 2
    end = time.monotonic() + timeout
    while any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks):
        assert time.monotonic() < end, ranks
        time.sleep(0.05)


@pytest.fixture
def small_thinker() -> Iterator[Child]:
    with child.child(tiny_model.checkpoint(), "create_thinker", kv_tokens=400, tp_size=2) as process:
        yield process


def test_a_silent_follower_ends_its_stage(small_thinker: Child, tmp_path: Path) -> None:
    small_thinker.call(child.write_why, tmp_path / "why")
    small_thinker.call(child.set_limit, "SILENCE", 3.0)
    ranks = ranks_of(small_thinker)
    time.sleep(SIGN_PERIOD)
    with Traced(ranks[1].pid):
        wait_gone(ranks, 30)
    assert (tmp_path / "why").read_text() == f"lost {FOLLOWER}, which gave no sign of life for 3 s and was killed"


def test_a_step_without_end_ends_its_stage(small_thinker: Child, tmp_path: Path) -> None:
    """One rank is in a collective that the other never enters; both show life."""
    small_thinker.call(child.write_why, tmp_path / "why")
    small_thinker.call(child.set_limit, "LONGEST_STEP", 2.0)
    ranks = ranks_of(small_thinker)
    small_thinker.call(child.step_alone, inputs(talks(1, 900)))
    wait_gone(ranks, 30)
    assert (tmp_path / "why").read_text() == f"a step has not ended for 2 s on rank 0, {FOLLOWER}"


def test_a_follower_that_is_stopped_while_it_starts_is_told_of() -> None:
    config = EngineConfig({}, Path(), {}, torch.float32, None, max_running=1, kv_tokens=1, prefill_tokens=1)
    followers = Followers(config, RankGroup("thinker", 2), on_lost=lambda reason: None)
    try:
        [starting] = [
            one for one in psutil.Process().children() if "omni_python.sglang_engine.follower" in one.cmdline()
        ]
        starting.suspend()
        with pytest.raises(OmniError, match="was stopped by a signal and killed before it had started"):
            followers.join()
    finally:
        followers.close()


def test_what_cannot_run_on_ranks_is_refused() -> None:
    checkpoint = str(tiny_model.checkpoint())
    with pytest.raises(InvalidArgument, match='tp_size 2 needs engine "sglang"; engine "torch" runs in one process'):
        create_thinker(checkpoint, tp_size=2)
    with pytest.raises(InvalidArgument, match="tp_size 3 does not divide .* valid: 1, 2, 4"):
        create_thinker(checkpoint, engine="sglang", tp_size=3)
    config = on_ranks(checkpoint, {"thinker": {}, "code2wav": {}})
    problems = {problem.path: problem.message for problem in check_imports(config)}
    assert 'engine "sglang" does it' in problems["stages.thinker.tp_size"]
    assert "its stage runs in one process" in problems["stages.code2wav.tp_size"]


def on_ranks(checkpoint: str, stages: dict[str, dict[str, Any]]) -> Qwen3OmniSpeechPipelineConfig:
    """The pipeline with these stages, and factory arguments, on two ranks, each in a process of its own."""
    changed = []
    for stage in Qwen3OmniSpeechPipelineConfig.model_fields["stages"].default:
        if stage.name in stages:
            update = {"tp_size": 2, "process": stage.name, "factory_args": {**stage.factory_args, **stages[stage.name]}}
            stage = stage.model_copy(update=update)
        changed.append(stage)
    return Qwen3OmniSpeechPipelineConfig(model_path=checkpoint, stages=changed)


@pytest.mark.alone  # four ranks on two cores, and a load holds the orchestrator up: 30 s count as its death
def test_a_server_meets_the_oracle_and_survives_the_loss_of_ranks(tmp_path: Path, no_leaks: LeakCheck) -> None:
    engine = {"engine": "sglang", "kv_tokens": 8192}
    config = on_ranks(str(tiny_model.checkpoint()), {"thinker": engine, "talker_ar": engine})
    compile_pipeline(config, tmp_path)
    with no_leaks():
        with TritonServer.start(ServerOptions(model_repository=tmp_path, exit_timeout_s=10), timeout_s=250) as server:
            check_oracle(server)
            before = [rank_process(server, name) for name in FOLLOWERS]
            check_lost(server, "talker_ar", signal.SIGKILL, "was killed by SIGKILL")
            check_lost(server, "thinker", signal.SIGSTOP, "was stopped by a signal and killed")
            wait_served(server)
            metrics.wait_empty(server, "qwen3_omni")
            ours = [rank_process(server, name) for name in FOLLOWERS]
            assert not {old.pid for old in before} & {new.pid for new in ours}
        _, alive = psutil.wait_procs(ours, timeout=10)
        assert alive == []


FOLLOWERS = ("thinker_tp1", "talker_ar_tp1")


def check_lost(server: TritonServer, stage: str, hit_by: signal.Signals, what: str) -> None:
    """The requests that the stage runs are told what became of its follower."""
    follower = rank_process(server, f"{stage}_tp1")
    errors = errors_while(server, stage, lambda: follower.send_signal(hit_by))
    assert errors
    for error in errors:
        assert f"process {stage} (stages {stage}) lost rank 1 (process {stage}_tp1), which {what}" in error, errors


def check_oracle(server: TritonServer) -> None:
    def ask(name: str) -> Answer:
        case = load_case(name)
        with OmniClient(server.grpc_url, "qwen3_omni") as client:
            return client.chat(messages=case.openai_messages(), voice=case.voice, sampling=case.sampling())

    with ThreadPoolExecutor(len(CASES)) as pool:
        try:
            answers = dict(zip(CASES, pool.map(ask, CASES), strict=True))
        except OmniClientError as error:
            error.add_note("the server's log ends with\n" + server.log.read_text(errors="replace")[-8000:])
            raise
    for name, answer in answers.items():
        case = load_case(name)
        assert answer.text == case.text
        assert answer.finished.finish_reason == case.answer_ends
        assert answer.audio.shape == case.waveform.shape
        np.testing.assert_allclose(answer.audio, case.waveform, atol=1e-4)


def rank_process(server: TritonServer, name: str) -> psutil.Process:
    children = psutil.Process(server.process.pid).children(recursive=True)
    [found] = [process for process in children if is_named(process, name)]
    return found


def is_named(process: psutil.Process, name: str) -> bool:
    try:
        return process.cmdline()[:1] == [name]
    except psutil.NoSuchProcess:  # or a zombie
        return False


def errors_while(server: TritonServer, stage: str, act: Any) -> list[str]:
    """What requests are told that `stage` runs while `act` is done."""
    modalities = ["text"] if stage == "thinker" else ["text", "audio"]
    long = {"max_tokens": 2000, "ignore_eos": True}
    sampling = long if stage == "thinker" else {"max_tokens": 4, "talker": long}
    errors: list[str] = []

    def ask() -> None:
        with OmniClient(server.grpc_url, "qwen3_omni") as client:
            try:
                client.chat("x", modalities=modalities, sampling=sampling)
            except OmniClientError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while metrics.read(server, "omni_stage_held", stage=stage, what="requests") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    act()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a request did not end"
    return errors


def wait_served(server: TritonServer) -> None:
    deadline = time.monotonic() + 100
    with OmniClient(server.grpc_url, "qwen3_omni") as client:
        while time.monotonic() < deadline:
            try:
                assert client.chat("x", sampling={"max_tokens": 4}).text
                return
            except OmniClientError:
                time.sleep(1)
    raise AssertionError("not served again")
