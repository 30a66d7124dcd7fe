"""Autoregressive stages on a real SGLang scheduler, behind the same contract as `TorchScheduler`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
import torch

from omni_python.model_runner.base import ARModelRunner, ARRequest, PromptInput, R
from omni_python.proto.errors import InvalidArgument, Unavailable
from omni_python.scheduling.autoregressive import AutoregressiveScheduler
from omni_python.scheduling.base import KVUse
from omni_python.sglang_engine.engine import Choice, Engine, EngineConfig
from omni_python.sglang_engine.followers import RankGroup
from omni_python.sglang_engine.parallel import LeadingEngine

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=ARRequest, contravariant=True)


class PromptIdentity(Protocol[S]):
    """What SGLang has to know of a model's prompts before it runs them."""

    def key(self, row: S) -> list[int]:
        """The prompt's tokens, `prompt_len` of them; what equal keys begin with must have equal keys and values."""

    def positions(self, row: S) -> torch.Tensor:
        """[3, prompt_len], whole numbers."""

    def computed(self, row: S, tapped: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """The prompt was computed. `tapped` gives the tapped hidden state [m, H] where a mask [prompt_len] is True."""


@dataclass(slots=True, eq=False)
class _Job(Generic[R]):
    """`prompt` is made when SGLang begins with it, and kept: it is wanted again where the row loses its KV."""

    row: R
    queued: bool = False
    prompt: PromptInput | None = None


class OmniScheduler(AutoregressiveScheduler[R]):
    """SGLang chooses who runs and where the keys and values are; a model runner makes the inputs, chooses tokens and
    emits messages, the same one as under `TorchScheduler`.

    Requests that do not fit now wait in SGLang's queue; those that never fit are refused at once. With
    `config.feedback` a request is only queued when room for all its max_tokens is left, so that SGLang never takes a
    row's KV away: what it was fed is not kept.
    """

    def __init__(
        self,
        make_runner: Callable[[Engine], ARModelRunner[R]],
        identity: PromptIdentity[R],
        config: EngineConfig,
        name: str = "ar",
        ranks: RankGroup | None = None,
    ) -> None:
        """`make_runner` gets the engine with its weights loaded. With `ranks` this process is their rank 0."""
        super().__init__(name)
        self._jobs: dict[str, _Job[R]] = {}
        self._identity = identity
        self._feedback = config.feedback
        self._max_running = config.max_running
        self._stepped: list[R] = []
        self._unmade: list[R] = []  # rows whose prompts could not be made, or were not accepted, in this step
        self._prompted: set[str] = set()  # rows of this step with a piece of their prompt; kept while some are traced
        if ranks is None:
            self.engine = Engine(config, self)
        else:
            self.engine = LeadingEngine(config, self, ranks, self.give_up)
        self._runner = make_runner(self.engine)

    def profile_others(self, path: Path, seconds: float) -> None:
        if isinstance(self.engine, LeadingEngine):
            self.engine.profile_followers(path, seconds)

    def stop(self) -> None:
        super().stop()
        self.engine.close()

    def stats(self) -> Mapping[str, int]:
        return {
            "requests": len(self._jobs),
            "kv_tokens": self.engine.kv_tokens,
            "request_slots": self.engine.request_slots,
        }

    def kv_use(self) -> KVUse:
        engine = self.engine
        return KVUse(engine.kv_tokens, engine.capacity, engine.looked_up_tokens, engine.found_tokens)

    # ---- AutoregressiveScheduler

    def _row(self, request_id: str) -> R | None:
        job = self._jobs.get(request_id)
        return None if job is None else job.row

    def _admit_row(self, row: R) -> None:
        if row.prompt_len > self.engine.longest_prompt:
            raise InvalidArgument(
                f"the prompt has {row.prompt_len} tokens; at most {self.engine.longest_prompt} fit into this stage's "
                "KV cache and the model's context; shorten it"
            )
        room = self.engine.context - row.prompt_len
        if row.max_tokens > room:  # an answer ends where the context does
            row.sampler.params = msgspec.structs.replace(row.sampler.params, max_tokens=room)
        self._check_fits(row, self.engine.capacity - 1)
        self._jobs[row.request_id] = _Job(row)

    def drop(self, request_id: str) -> None:
        job = self._jobs.pop(request_id, None)
        if job is not None:
            self.engine.abort(request_id)
            self._runner.release(job.row)

    def work(self) -> bool:
        self._enqueue()
        start = time.monotonic() if self.traces else 0.0
        self._prompted.clear()
        try:
            worked = self.engine.step(self._is_ready if self._feedback else None)
        except Exception as error:
            logger.exception("a step failed")
            self.note_failure(error)  # first: on a GPU that is lost the rest fails, too
            for name in self.engine.fail_batch():
                self.fail(name, error)
            return True
        for name in self.engine.take_lost():
            self.fail(name, Unavailable("this stage's KV cache has no room left for the request"))
        stepped, self._stepped = self._stepped, []
        if start:
            self.note_step(self._prompted.union(row.request_id for row in stepped), start)
        for row in stepped:
            if row.error is not None:
                self.fail(row.request_id, row.error)
            else:
                self._emit(row)
        unmade, self._unmade = self._unmade, []
        for row in unmade:  # those of which no more than a piece was computed, and no token chosen
            if row.error is not None and row.request_id in self._jobs:
                self.fail(row.request_id, row.error)
        return worked

    # ---- StepHooks

    def prompt(self, name: str) -> PromptInput | None:
        job = self._jobs[name]
        if self.traces:
            self._prompted.add(name)
        if job.prompt is None:
            self.on_began(name)
        if job.prompt is None and job.row.error is None:
            try:
                job.prompt = self._runner.prompt_input(job.row)
            except Exception as error:
                job.row.error = error
                self._unmade.append(job.row)
        return job.prompt

    def decode_embeds(self, names: Sequence[str]) -> torch.Tensor:
        return self._runner.decode_embeds([self._jobs[name].row for name in names])

    def choose(self, names: Sequence[str], hidden: torch.Tensor, logits: torch.Tensor) -> list[Choice]:
        rows = [self._jobs[name].row for name in names]
        self.batch_sizes.observe(len(rows))
        for row in rows:
            if not row.generated and row.error is None:
                self._identity.computed(row, partial(self.engine.tapped, row.request_id))
        good = [index for index, row in enumerate(rows) if row.error is None]
        if good:
            if len(good) < len(rows):
                hidden, logits = hidden[good], logits[good]
            self._runner.advance([rows[index] for index in good], hidden, logits)
        self._stepped = rows
        return [
            Choice(0, failed=True) if row.error is not None else Choice(row.generated[-1], row.finish_reason)
            for row in rows
        ]

    # ----

    def _is_ready(self, name: str) -> bool:
        return self._runner.is_ready(self._jobs[name].row)

    def _enqueue(self) -> None:
        """Hand over, in order of arrival, those whose first input is there."""
        queued = [job.row for job in self._jobs.values() if job.queued]
        room = self.engine.capacity - 1 - sum(row.prompt_len + row.max_tokens for row in queued)
        for name, job in self._jobs.items():
            row = job.row
            if job.queued or not self._runner.is_ready(row):
                continue
            room -= row.prompt_len + row.max_tokens
            if self._feedback and (room < 0 or len(queued) >= self._max_running):
                return
            queued.append(row)
            self._queue(name, job)

    def _queue(self, name: str, job: _Job[R]) -> None:
        row = job.row
        job.queued = True
        answer = torch.arange(row.prompt_len, row.prompt_len + row.max_tokens) + int(row.rope_delta)
        try:
            positions = torch.cat((self._identity.positions(row).long().cpu(), answer.expand(3, -1)), dim=1)
            self.engine.add(name, self._identity.key(row), positions, row.max_tokens)
        except Exception as error:
            row.error = error
            self._unmade.append(row)
