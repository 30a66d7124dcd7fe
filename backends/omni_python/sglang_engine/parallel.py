"""Engines of a tensor-parallel group: rank 0's, which decides, and those of the others, which follow.

All ranks hold a shard of the weights and of the KV cache, and each has an SGLang scheduler that is told the same
things in the same order; so all plan the same batch. Rank 0 sends its plan before the forward pass, and a follower
that planned another one ends with an error instead of entering collectives whose shapes differ.

Inputs (embeddings, deepstack features, a feedback row) are made by rank 0's owner and broadcast between the devices;
tokens are chosen on rank 0 and go to the others in a message: whether a row ends is decided on the host anyhow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from omni_python.model_runner.base import PromptInput
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.sglang_engine import cpu_kernels
from omni_python.sglang_engine.config import EngineConfig
from omni_python.sglang_engine.engine import Engine
from omni_python.sglang_engine.followers import Followers, RankGroup
from omni_python.sglang_engine.hooks import Choice, StepHooks
from omni_python.sglang_engine.launch import check_version
from omni_python.sglang_engine.rank_messages import (
    Abort,
    Add,
    Choices,
    FailBatch,
    HookFailed,
    Link,
    Plan,
    Profile,
    ResetCache,
    Step,
    Stop,
)

ERROR_GRACE = 2.0
"""Seconds in which the death that made a collective fail becomes known, which says more than the collective's error."""


class _HookFailed(OmniError):
    """On followers: the step failed on rank 0, outside the forward pass; the group goes on."""


class LeadingEngine(Engine):
    """Rank 0. A step that fails in the forward pass ends the group: the others may wait in a collective for ever."""

    def __init__(
        self, config: EngineConfig, hooks: StepHooks, group: RankGroup, on_lost: Callable[[str], None]
    ) -> None:
        check_version()
        check_sizes(config, group.size)
        config = replace(config, tp_size=group.size, gpu_id=group.gpu_id(0))
        self._followers = Followers(config, group, on_lost)
        try:
            import_sglang(config.gpu_id)
            self._followers.join()
            self._shared_hooks = _SharedHooks(hooks, self._followers)
            super().__init__(replace(config, tp_port=self._followers.port), self._shared_hooks)
        except BaseException:
            self._followers.close()
            raise

    def close(self) -> None:
        self._followers.close()

    def add(self, name: str, ids: Sequence[int], positions: torch.Tensor, max_tokens: int) -> None:
        super().add(name, ids, positions, max_tokens)  # first: what it refuses would end the followers
        self._followers.send(Add(name, torch.tensor(ids, dtype=torch.int64), positions, max_tokens))

    def abort(self, name: str) -> None:
        self._followers.send(Abort(name))
        super().abort(name)

    def step(self, ready: Callable[[str], bool] | None = None) -> bool:
        waiting = None if ready is None else {name for name in self._requests if not ready(name)}
        try:
            with self._followers.step(waiting):
                return super().step(None if waiting is None else lambda name: name not in waiting)
        except Exception as error:
            if not self._shared_hooks.take_failed() and not self._followers.lost.wait(ERROR_GRACE):
                self._followers.report(f"rank 0 failed in a step: {error}")
            raise

    def profile_followers(self, path: Path, seconds: float) -> None:
        """Each writes a trace beside the one of rank 0, at `path`. Any thread."""
        self._followers.send(Profile(str(path), seconds))

    def fail_batch(self) -> list[str]:
        self._followers.send(FailBatch())
        return super().fail_batch()

    def reset_cache(self) -> None:
        self._followers.send(ResetCache())
        super().reset_cache()

    def _set_inputs(self, batch: Any) -> None:
        super()._set_inputs(batch)
        plan = _plan(self, batch)
        plan.uncached = [bool(request.skip_radix_cache_insert) for request in batch.reqs]
        plan.deepstack = any(part.prompt.deepstack is not None for part in self._model.slices)
        self._followers.send(plan)
        _share_inputs(self, batch)


class FollowingEngine(Engine):
    """Rank 1 and up; `run` does what rank 0 says until it says `Stop`."""

    def __init__(self, config: EngineConfig, link: Link) -> None:
        self.steps = 0
        """That have ended so far. Any thread."""
        self._link = link
        super().__init__(config, _FollowingHooks(link))

    def run(self) -> None:
        """Raises `EOFError` where rank 0 is gone."""
        while not isinstance(message := self._link.receive(), Stop):
            match message:
                case Add():
                    self.add(message.name, message.ids.tolist(), message.positions, message.max_tokens)
                case Abort():
                    self.abort(message.name)
                case Step():
                    self._follow(message)
                    self.steps += 1
                case FailBatch():
                    self.fail_batch()
                case ResetCache():
                    self.reset_cache()
                case _:
                    raise OmniError(f"rank 0 sent {type(message).__name__} between steps")

    def _follow(self, message: Step) -> None:
        waiting = None if message.waiting is None else frozenset(message.waiting)
        try:
            self.step(None if waiting is None else lambda name: name not in waiting)
        except _HookFailed:
            return  # what to do about it comes next
        self.take_lost()

    def _set_inputs(self, batch: Any) -> None:
        given, own = _receive(self._link, Plan), _plan(self, batch)
        if (given.names, given.free, given.starts, given.tokens) != (own.names, own.free, own.starts, own.tokens):
            raise OmniError(f"the ranks planned different batches: rank 0 {given}, this one {own}")
        for request, uncached in zip(batch.reqs, given.uncached, strict=True):
            request.skip_radix_cache_insert = uncached
        self._model.slices = []
        self._model.deepstack_comes = given.deepstack
        _share_inputs(self, batch)


def import_sglang(gpu_id: int | None) -> None:
    """What takes longest before the ranks meet; rank 0 does it while the others do."""
    cpu_kernels.prepare(gpu_id is not None)
    import sglang.srt.managers.scheduler  # noqa: F401


def check_sizes(config: EngineConfig, size: int) -> None:
    """Raises `InvalidArgument` where a decoder cannot be cut into `size` equal shards."""
    text = config.text_config
    heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
    widths = [heads, text["moe_intermediate_size"], text.get("shared_expert_intermediate_size") or 0]

    def fits(size: int) -> bool:
        return not any(width % size for width in widths) and (kv_heads % size == 0 or size % kv_heads == 0)

    if not fits(size):
        valid = ", ".join(str(n) for n in range(1, heads + 1) if fits(n))
        raise InvalidArgument(f"tp_size {size} does not divide this model's heads and experts; valid: {valid}")


def _plan(engine: Engine, batch: Any) -> Plan:
    names = [engine._names.get(request, "") for request in batch.reqs]
    free = int(engine._scheduler.token_to_kv_pool_allocator.available_size())
    if batch.forward_mode.is_extend():
        return Plan(names, free, [int(n) for n in batch.prefix_lens], [int(n) for n in batch.extend_lens])
    return Plan(names, free)


def _share_inputs(engine: Engine, batch: Any) -> None:
    """Embeddings of prompts are shared inside the forward pass, where they are made."""
    if engine._config.feedback and not batch.forward_mode.is_extend():
        engine._model.share(engine._model.inputs[: len(batch.reqs)])


def _receive(link: Link, kind: type[Any]) -> Any:
    message = link.receive()
    if isinstance(message, HookFailed):
        raise _HookFailed("the step failed on rank 0")
    if not isinstance(message, kind):
        raise OmniError(f"rank 0 sent {type(message).__name__} where {kind.__name__} was due")
    return message


class _SharedHooks:
    """The owner's hooks on rank 0; what was chosen, and a hook that failed, are told to the followers."""

    def __init__(self, hooks: StepHooks, followers: Followers) -> None:
        self._hooks = hooks
        self._followers = followers
        self._failed = False

    def take_failed(self) -> bool:
        """Whether a hook has failed since the last call."""
        failed, self._failed = self._failed, False
        return failed

    def prompt(self, name: str) -> PromptInput | None:
        with self._failures_told():
            return self._hooks.prompt(name)

    def decode_embeds(self, names: Sequence[str]) -> torch.Tensor:
        with self._failures_told():
            return self._hooks.decode_embeds(names)

    def choose(self, names: Sequence[str], hidden: torch.Tensor, logits: torch.Tensor) -> list[Choice]:
        with self._failures_told():
            choices = self._hooks.choose(names, hidden, logits)
        tokens, finishes = [choice.token for choice in choices], [choice.finish for choice in choices]
        self._followers.send(Choices(list(names), tokens, finishes, [choice.failed for choice in choices]))
        return choices

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._failed = True
            self._followers.send(HookFailed())
            raise


class _FollowingHooks:
    def __init__(self, link: Link) -> None:
        self._link = link

    def prompt(self, name: str) -> NoReturn:
        raise NotImplementedError("rank 0 makes the inputs")

    def decode_embeds(self, names: Sequence[str]) -> NoReturn:
        raise NotImplementedError("rank 0 makes the inputs")

    def choose(self, names: Sequence[str], hidden: torch.Tensor, logits: torch.Tensor) -> list[Choice]:
        given = _receive(self._link, Choices)
        if given.names != list(names):
            raise OmniError(f"the ranks chose for different rows: rank 0 {given.names}, this one {list(names)}")
        return [Choice(*choice) for choice in zip(given.tokens, given.finishes, given.failed, strict=True)]
