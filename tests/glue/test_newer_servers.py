"""What the glue does on servers that have more than 24.10 has, and on 24.10: fakes of both, with real pipelines."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from omni_python.config.numpy_support import numpy_refusal
from omni_python.config.parts import LimitsConfig, TraceConfig
from omni_python.config.schema import PipelineConfig
from omni_python.config.topology import resolve_topology
from omni_python.model import TritonPythonModel
from omni_python.models.noop.config import NoopForwardPipelineConfig, NoopLinePipelineConfig
from omni_python.proto.errors import Unavailable
from omni_python.proto.payload import AudioOutput, TextOutput
from omni_python.proto.trace import Trace
from tests.glue.fake_triton import NEW, OLD, Instance, OldResponse, Request, Response, Server
from tests.glue.loading import glue_on
from tests.waiting import wait_until

BOTH = pytest.mark.parametrize("server", [OLD, NEW], ids=["24.10", "26.07"])
OUTPUTS: tuple[str, ...] = ("text_output", "audio_output", "audio_sample_rate", "finish_reason", "usage")
OUTPUTS += ("num_input_tokens", "num_output_tokens", "stage_timings", "trace")
TRACE_ID = "ab" * 16
NOT_READY = "is not ready (user-defined check failed)."


@pytest.fixture
def directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMNI_METRICS", "0")
    return directory


# -- the hook, in whole pipelines


@dataclass
class Served:
    """A pipeline's models, each as the entry point that Triton loads, and the server's view of it."""

    models: dict[str, Any]
    instances: dict[str, Instance]

    def not_ready(self) -> set[str]:
        return {name for name, instance in self.instances.items() if instance.not_ready()}

    def begin(self, chunks: int) -> Request:
        inputs = {
            "text_input": np.array([b"hello"], np.object_),
            "stream": np.array([True]),
            "sampling_parameters": np.array([json.dumps({"chunks": chunks, "chunk_bytes": 8}).encode()], np.object_),
        }
        request = Request(OUTPUTS, **inputs)
        self.models["orchestrator"].execute([request])
        return request

    def ask(self) -> list[OldResponse]:
        return self.begin(3).sender.wait()


@contextmanager
def serving(server: Server, config: PipelineConfig, directory: Path) -> Iterator[Callable[..., Served]]:
    """Gives a function that loads more models, `orchestrator` or processes, with all of their replicas."""
    served = Served({}, {})
    with glue_on(server.module()):
        orchestrator = importlib.import_module("omni_python.glue.orchestrator").Orchestrator
        stage = importlib.import_module("omni_python.glue.stage").StageModel
        context = importlib.import_module("omni_python.glue.context").ModelContext
        replicas = {group.name: group.replicas for group in resolve_topology(config).groups}

        def load(*names: str) -> Served:
            for name in names:
                count = replicas.get(name, 1)
                for replica in range(count):
                    process = None if name == "orchestrator" else name
                    given = context(config, process, replica, "", False, directory, directory)
                    model = TritonPythonModel()
                    model._model = stage(given) if process else orchestrator(given)
                    key = name if count == 1 else f"{name}@{replica}"
                    served.models[key], served.instances[key] = model, server.instance(model)
            return served

        try:
            yield load
        finally:
            for name in sorted(served.models, key="orchestrator".__eq__):  # the others need it to leave at once
                served.models[name]._model.finalize()


def test_a_pipeline_is_ready_once_all_of_its_processes_are_there(directory: Path) -> None:
    with serving(NEW, NoopLinePipelineConfig(), directory) as load:
        served = load("a")
        assert served.not_ready() == {"a"}, "no coordinator knows of it"
        load("orchestrator")
        wait_until(lambda: served.not_ready() == {"orchestrator"})
        load("b")
        wait_until(lambda: served.not_ready() == {"orchestrator"})
        load("c")
        wait_until(lambda: not served.not_ready())
        assert served.instances["a"].not_ready() == ""


@pytest.mark.parametrize("leaving", ["a", "c"])
def test_neither_is_ready_when_a_process_leaves(directory: Path, leaving: str) -> None:
    with serving(NEW, NoopLinePipelineConfig(), directory) as load:
        served = load("orchestrator", "a", "b", "c")
        wait_until(lambda: not served.not_ready())
        served.models[leaving]._model._process.drain(5)
        wait_until(lambda: served.not_ready() == {"orchestrator", leaving})
        assert served.instances["orchestrator"].not_ready() == NOT_READY


def test_a_process_that_only_ends_what_it_has_is_not_ready(directory: Path) -> None:
    with serving(NEW, NoopForwardPipelineConfig(), directory) as load:
        served = load("orchestrator", "a", "b")
        wait_until(lambda: not served.not_ready())
        sender = served.begin(1_000_000).sender
        wait_until(lambda: len(sender.sent) > 1)
        served.models["b"]._model._process.drain(0)
        wait_until(lambda: served.not_ready() == {"orchestrator", "b"})
        assert not sender.ended.is_set()
        served.models["orchestrator"]._model._coordinator.drain(end=True)
        assert sender.wait()[-1].has_error()


def test_one_replica_is_enough_for_a_pipeline(directory: Path) -> None:
    config = NoopForwardPipelineConfig()
    stages = [stage.model_copy(update={"replicas": 2 if stage.name == "b" else 1}) for stage in config.stages]
    with serving(NEW, config.changed(stages=stages), directory) as load:
        served = load("orchestrator", "a", "b")
        wait_until(lambda: not served.not_ready())
        served.models["b@0"]._model._process.drain(5)
        wait_until(lambda: served.not_ready() == {"b@0"})
        assert len(served.ask()) > 1
        served.models["b@1"]._model._process.drain(5)
        wait_until(lambda: served.not_ready() == {"orchestrator", "b@0", "b@1"})


def test_a_pipeline_that_admits_nothing_more_is_not_ready(directory: Path) -> None:
    with serving(NEW, NoopForwardPipelineConfig(), directory) as load:
        served = load("orchestrator", "a", "b")
        wait_until(lambda: not served.not_ready())
        served.models["orchestrator"]._model._coordinator.drain()
        assert served.not_ready() == {"orchestrator"}
        [refused] = served.ask()
        assert refused.has_error()


def test_a_process_whose_scheduler_cannot_go_on_is_not_ready(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(NEW, NoopForwardPipelineConfig(), directory) as load:
        served = load("orchestrator", "a", "b")
        wait_until(lambda: not served.not_ready())
        process = served.models["b"]._model._process
        stage_process = importlib.import_module("omni_python.pipeline.stage_process")
        killed: list[set[str]] = []
        monkeypatch.setattr(stage_process, "BROKEN_GRACE", 0.0)
        monkeypatch.setattr(stage_process.os, "kill", lambda pid, number: killed.append(served.not_ready()))
        monkeypatch.setattr(process._membership, "tell_overseers", lambda message: True)  # they would kill this process
        process.stages["b"].scheduler.on_broken("its device is gone")
        assert killed == [{"b"}]


def test_the_answer_waits_for_no_lock(directory: Path) -> None:
    with serving(NEW, NoopForwardPipelineConfig(), directory) as load:
        served = load("orchestrator", "a", "b")
        wait_until(lambda: not served.not_ready())
        coordinator = served.models["orchestrator"]._model._coordinator
        with coordinator._registry._lock, coordinator._requests._lock:
            assert not served.not_ready()


@BOTH
def test_an_old_server_never_asks_and_serves_alike(server: Server, directory: Path) -> None:
    with serving(server, NoopForwardPipelineConfig(), directory) as load:
        served = load("a", "b", "orchestrator")
        wait_until(lambda: served.models["orchestrator"].is_ready())
        responses = served.ask()
        assert not served.not_ready()
        assert [instance.calls for instance in served.instances.values()] == [int(server is NEW)] * 3
        assert not any(response.has_error() for response in responses)
        if server is NEW:
            given = [json.loads(response.parameters()) for response in responses if isinstance(response, Response)]
            assert len(given) == len(responses) and not any(given[:-1]), "only the last response has parameters"
            assert given[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("sample", [0.0, 1.0])
def test_an_answer_that_is_traced_by_chance_names_its_trace(sample: float, directory: Path) -> None:
    config = NoopForwardPipelineConfig().changed(trace=TraceConfig(sample=sample))
    with serving(NEW, config, directory) as load:
        served = load("orchestrator", "a", "b")
        wait_until(lambda: not served.not_ready())
        last = served.ask()[-1]
        assert isinstance(last, Response) and "trace" not in tensors(last), "the client did not ask for it"
        trace_id = json.loads(last.parameters()).get("trace_id", "")
        assert bool(trace_id) == bool(sample)
        if trace_id:
            traces = served.models["orchestrator"]._model._coordinator.traces
            assert traces.find(trace_id).trace_id == trace_id


def test_the_fake_judges_answers_as_the_stub_does() -> None:
    """A hook that is wrong is not passed by it: the tests above mean something."""

    class Wrong:
        answer: Any = None

        def is_ready(self) -> Any:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    wrong: Any = Wrong()
    assert "boolean" in NEW.instance(wrong).not_ready()
    wrong.answer = np.True_
    assert "boolean" in NEW.instance(wrong).not_ready()
    wrong.answer = ValueError("why")
    assert NEW.instance(wrong).not_ready() == "why" and OLD.instance(wrong).not_ready() == ""


# -- the last response's parameters


def answer(server: Server, stream: bool, wanted: tuple[str, ...], fail: bool = False) -> list[OldResponse]:
    """What a client gets for text and speech."""
    with glue_on(server.module()):
        request = importlib.import_module("omni_python.glue.request")
        response = importlib.import_module("omni_python.glue.response")
        parsed = request.parse_request({"text_input": np.array([b"x"], np.object_), "stream": np.array([stream])})
        sender = Request(wanted).sender
        sink = response.TritonSink(sender, parsed, wanted)
        sink.announce()
        sink.traced(TRACE_ID)
        sink.chunk(TextOutput("hé"))
        sink.chunk(AudioOutput(np.full(2400, 0.5, np.float32), 24000))
        sink.result("decode", TextOutput("llo", "length", num_input_tokens=7, num_output_tokens=11))
        if fail:
            sink.fail(Unavailable("the vocoder died"))
        else:
            sink.result("code2wav", AudioOutput(np.empty(0, np.float32), 24000, "stop", num_frames=5))
            sink.finish([], Trace("1-1", TRACE_ID, "", "p", 0.0, 1.0, "completed", "", True, (), ()))
        return sender.wait()


def tensors(response: OldResponse) -> dict[str, Any]:
    found = {tensor.name(): tensor.as_numpy()[0] for tensor in response.output_tensors()}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


@pytest.mark.parametrize("stream", [True, False])
def test_the_last_response_says_in_parameters_what_its_outputs_say(stream: bool) -> None:
    *before, last = answer(NEW, stream, OUTPUTS)
    assert isinstance(last, Response)
    given, outputs = json.loads(last.parameters()), tensors(last)
    assert given.pop("trace_id") == json.loads(outputs["trace"])["trace_id"] == TRACE_ID
    assert given == {name: outputs[name] for name in given}
    assert given.keys() == {"finish_reason", "num_input_tokens", "num_output_tokens", "usage"}
    assert (given["finish_reason"], given["num_output_tokens"]) == ("length", 11)
    assert json.loads(given["usage"])["audio_seconds"] == 0.1
    assert before and all(isinstance(one, Response) and one.parameters() == "{}" for one in before)


def test_parameters_do_not_depend_on_the_outputs_asked_for() -> None:
    whole, less = (answer(NEW, False, wanted)[-1] for wanted in (OUTPUTS, ("text_output",)))
    assert isinstance(whole, Response) and isinstance(less, Response)
    assert tensors(less).keys() == {"text_output"} and less.parameters() == whole.parameters()


def test_a_part_that_failed_is_told_of_before_the_error() -> None:
    *_, partial, error = answer(NEW, True, OUTPUTS, fail=True)
    assert isinstance(partial, Response) and isinstance(error, Response)
    given = json.loads(partial.parameters())
    assert (given["finish_reason"], json.loads(given["usage"])["audio_finish_reason"]) == ("error", "error")
    assert given["trace_id"] == TRACE_ID
    assert error.has_error() and error.parameters() == "{}"


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("stream", [True, False])
def test_an_old_server_gets_the_same_outputs(stream: bool, fail: bool) -> None:
    old, new = (answer(server, stream, OUTPUTS, fail) for server in (OLD, NEW))
    assert [one.output_tensors() == [] for one in old] == [one.output_tensors() == [] for one in new]
    assert [repr(tensors(one)) for one in old if one.output_tensors()] == [
        repr(tensors(one)) for one in new if one.output_tensors()
    ]
    assert not any(isinstance(one, Response) for one in old)


# -- dead processes


@BOTH
def test_a_dead_process_is_loaded_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = resolve_topology(NoopLinePipelineConfig())
    models = {group.name: group.triton_model for group in topology.groups}
    module: Any = server.module(models.values())
    told: list[str] = []
    with glue_on(module):
        recovery = importlib.import_module("omni_python.glue.recovery")
        repository = importlib.import_module("omni_python.glue.repository")
        monkeypatch.setattr(repository, "_http_address", lambda: None)  # a server without an HTTP port
        for what in ("load_model", "unload_model"):
            monkeypatch.setattr(module, what, _noting(told, what, getattr(module, what)))
        reloader = recovery.ModelReloader(
            topology, lambda *given_up: told.append("given up"), lambda *_: told.append("restart"), LimitsConfig()
        )
        reloader.start()
        reloader.recover("b", 0, 0.1)
        wait_until(lambda: "load_model" in told or "given up" in told)
        wait_until(lambda: not reloader._late)
        reloader.stop()
        reloader._thread.join()
    assert told == ["unload_model", "load_model"] and all(module.repository.loaded.values())


def _noting(told: list[str], what: str, call: Callable[..., None]) -> Callable[..., None]:
    def noted(*arguments: Any, **named: Any) -> None:
        call(*arguments, **named)
        told.append(what)

    return noted


# -- numpy


def release(module: ModuleType) -> str:
    with glue_on(module):
        return str(importlib.import_module("omni_python.glue.model")._release())


def test_numpy_2_is_taken_where_the_server_is_known_to_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVIDIA_TRITON_SERVER_VERSION", raising=False)
    assert numpy_refusal("2.4.6", release(OLD.module())), "it may be 24.10"
    assert not numpy_refusal("2.4.6", release(NEW.module())) and not numpy_refusal("1.26.4", release(OLD.module()))
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "24.11")
    assert not numpy_refusal("2.4.6", release(OLD.module())), "what an image says of itself counts"


def test_the_glue_is_left_as_it_was() -> None:
    import omni_python.glue as package
    from omni_python.glue import request

    with glue_on(NEW.module()):
        assert importlib.import_module("omni_python.glue.request") is not request
    assert package.request is request
