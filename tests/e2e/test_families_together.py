"""All families on one tritonserver, from one repository: each can be unloaded and loaded while the others serve."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from omni_python.cli import main
from omni_python.client import Answer, OmniClient, OmniClientError
from omni_python.models.catalog import TINY_CHECKPOINTS
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

FAMILIES = sorted(TINY_CHECKPOINTS)
RATES = {"qwen3_omni": 24000, "qwen2_5_omni": 24000, "fish_s2_pro": 44100, "ming_omni": 44100}
SAMPLING = {"max_tokens": 6, "seed": 3, "ignore_eos": True, "talker": {"max_tokens": 6, "seed": 3, "ignore_eos": True}}
WAVE_TOLERANCE = 1e-4

pytestmark = [pytest.mark.alone, pytest.mark.timeout(400)]


@dataclass(frozen=True)
class Served:
    server: TritonServer
    models: dict[str, list[str]]
    """Each family's: its orchestrator first, then the processes of its stages."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("families")
    repository = folder / "models"
    models: dict[str, list[str]] = {}
    for family in FAMILIES:
        assert main(["checkpoint", str(folder / family), "--family", family]) == 0
        assert main(["compile", family, "--model-path", str(folder / family), "--output", str(repository)]) == 0
        others = {name for names in models.values() for name in names}
        models[family] = sorted({path.parent.name for path in repository.glob("*/config.pbtxt")} - others)
    with TritonServer.start(ServerOptions(model_repository=repository, exit_timeout_s=5), timeout_s=200) as server:
        yield Served(server, models)


def ask(server: TritonServer, family: str) -> Answer:
    sampling = SAMPLING if family != "fish_s2_pro" else {k: v for k, v in SAMPLING.items() if k != "talker"}
    with OmniClient(server.grpc_url, family) as client:
        return client.chat("Good morning, how are you?", sampling=sampling)


def same(one: Answer, other: Answer) -> bool:
    close = len(one.audio) == len(other.audio) and bool(np.abs(one.audio - other.audio).max() < WAVE_TOLERANCE)
    return one.text == other.text and close


@dataclass
class Asking:
    """Asks `families` in turn while it is entered; all their answers must be those of `expected`."""

    server: TritonServer
    families: list[str]
    expected: dict[str, Answer]
    answered: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __enter__(self) -> Asking:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            for family in self.families:
                try:
                    if not same(ask(self.server, family), self.expected[family]):
                        self.wrong.append(f"{family}: another answer")
                except OmniClientError as error:
                    self.wrong.append(f"{family}: {error}")
                self.answered[family] = self.answered.get(family, 0) + 1


def test_every_family_comes_and_goes_while_the_others_serve(served: Served) -> None:
    server = served.server
    expected = {family: ask(server, family) for family in FAMILIES}
    for family, answer in expected.items():
        assert len(answer.audio) and answer.sample_rate == RATES[family], family
    for family in FAMILIES:
        others, models = [other for other in FAMILIES if other != family], served.models[family]
        with Asking(server, others, expected) as asking:
            for model in models:
                server.unload(model)
            end = time.monotonic() + 60
            while any(server.is_model_ready(model) for model in models):
                assert time.monotonic() < end, f"{family} is still there"
                time.sleep(0.1)
            with pytest.raises(OmniClientError, match=family):
                ask(server, family)
            for model in reversed(models):
                server.load(model)
            assert same(ask(server, family), expected[family])
        assert asking.wrong == []
        assert set(asking.answered) == set(others)
