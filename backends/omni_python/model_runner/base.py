"""One step of an autoregressive stage: before hooks, forward, sampling, post hook, output.

A runner knows its model and its payloads, and nothing of queues, pages or who runs when; that is the scheduler's.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from omni_python.layers.decoder import Decoder, Deepstack
from omni_python.layers.kv_cache import AttentionPlan, KVRow, PagedKVCache
from omni_python.layers.packed_prompts import PackedPrompts
from omni_python.model_runner.sampler import TokenSampler, sample_tokens
from omni_python.proto.errors import OmniError
from omni_python.proto.work import IncomingMessage, OutgoingMessage

NOT_A_NUMBER = "the model's output is not a number; its weights or this request's inputs are broken"


@dataclass(kw_only=True, eq=False)
class ARRequest:
    """One request's state; runners add to it.

    `computed` tokens have their keys and values in `pages`. A token at place p of the answer has the rotary position
    p + `rope_delta` in all three dimensions.
    """

    request_id: str
    sampler: TokenSampler
    prompt_len: int
    rope_delta: float = 0.0
    generated: list[int] = field(default_factory=list)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: Exception | None = None

    @property
    def max_tokens(self) -> int:
        return self.sampler.params.max_tokens


R = TypeVar("R", bound=ARRequest)


@dataclass(slots=True)
class PromptInput:
    """A prompt as the model takes it: `embeds` [n, H], `positions` [3, n], vision features at `deepstack.tokens`."""

    embeds: torch.Tensor
    positions: torch.Tensor
    deepstack: Deepstack | None = None


@dataclass(slots=True)
class ForwardBatch(Generic[R]):
    """Rows whose tokens go through the model together, flattened: first those that decode (one token each),
    then prompts.

    `last` [rows] is the place of each row's last token; `starts` [rows] (on the host) that of its first.
    """

    rows: list[R]
    decoding: int
    starts: list[int]
    last: torch.Tensor
    embeds: torch.Tensor
    positions: torch.Tensor
    plan: AttentionPlan
    deepstack: Deepstack | None


class ARModelRunner(abc.ABC, Generic[R]):
    """Base of the runners. Every method is called from the scheduler's thread alone."""

    cache: PagedKVCache
    packed: PackedPrompts | None = None
    """Through which short prompts go, where there is one."""
    captured_rows: int = 0
    """How many rows that decode `step_captured` takes at most; 0 where decode steps are not captured."""

    # ---- what a model defines

    @abc.abstractmethod
    def allocate(self, num_pages: int) -> None:
        """Make `cache`."""

    @abc.abstractmethod
    def open(self, message: IncomingMessage) -> R | None:
        """The state of the request that `message` begins; None where such a message begins none, and is ignored."""

    def take_chunk(self, row: R, data: Any) -> None:
        """A further chunk of the stream into the stage."""

    def take_done(self, row: R) -> None:
        """The stream into the stage is over. May set `finish_reason`: the request then ends without a further step."""

    def release(self, row: R) -> None:
        """The request is over, or dropped: free what the runner itself holds of it."""

    def is_ready(self, row: R) -> bool:
        """Whether the row's next input is there."""
        return True

    @abc.abstractmethod
    def prompt_input(self, row: R) -> PromptInput:
        """Before hook: what a request begins with, `prompt_len` tokens."""

    @abc.abstractmethod
    def decode_embeds(self, rows: Sequence[R]) -> torch.Tensor:
        """Before hook: [rows, H], each row's next input."""

    @abc.abstractmethod
    def forward(self, batch: ForwardBatch[R]) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model: each row's normed output at its last token [rows, H], and its logits [rows, V]."""

    def step_captured(self, rows: Sequence[R]) -> None:
        """One token of each of at most `captured_rows` rows that decode, by a captured step."""
        raise NotImplementedError

    def suppressed(self, rows: Sequence[R]) -> torch.Tensor | None:
        """Tokens that are not to be chosen: bool [V] or [rows, V]."""
        return None

    def choose(self, rows: Sequence[R], logits: torch.Tensor) -> torch.Tensor:
        """Each row's next token, int64 [rows], by float32 `logits` [rows, V]."""
        return sample_tokens(logits, [row.sampler for row in rows], self.suppressed(rows))

    def why_finished(self, row: R) -> str | None:
        """Why the row's answer ends with its newest token; None where it goes on."""
        return "length" if len(row.generated) >= row.max_tokens else None

    def after_sampling(self, rows: Sequence[R], hidden: torch.Tensor) -> None:
        """Post hook: `rows` go on, with `hidden` [rows, H] of the step that gave their newest token."""

    @abc.abstractmethod
    def emit(self, row: R) -> list[OutgoingMessage]:
        """Output: what the newest step gives to others; with the result where the row is finished. Once a step."""

    # ---- the step

    def batches(self, rows: Sequence[R]) -> Iterator[list[R]]:
        """`rows` as they are computed one batch after the other: where there is `packed`, first those that decode, then
        as many short prompts at a time as go through it together, then the other prompts; else all at once."""
        if self.packed is None:
            yield list(rows)
            return
        most = self.packed.most
        decoding = [row for row in rows if row.computed]
        long = [row for row in rows if not row.computed and row.prompt_len > most]
        together: list[R] = []
        tokens = 0
        if decoding:
            yield decoding
        for row in rows:
            if row.computed or row.prompt_len > most:
                continue
            if tokens + row.prompt_len > most:
                yield together
                together, tokens = [], 0
            together.append(row)
            tokens += row.prompt_len
        if together:
            yield together
        if long:
            yield long

    def step(self, rows: Sequence[R]) -> None:
        """Compute one token of each row: its prompt first where nothing is computed yet.

        A row that fails alone has its `error` set. An exception means that the whole batch failed.
        """
        if self.captured_rows:
            decoding = [row for row in rows if row.computed]
            for start in range(0, len(decoding), self.captured_rows):
                self.step_captured(decoding[start : start + self.captured_rows])
            rows = [row for row in rows if not row.computed]
        batch = self._batch(rows)
        if batch is None:
            return
        self.advance(batch.rows, *self.forward(batch))

    def through(
        self, decoder: Decoder, batch: ForwardBatch[R], tap: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`Decoder.forward` of a batch, by `packed` where it can; the next call may overwrite what it gives."""
        if self.packed is not None and not batch.decoding and len(batch.embeds) <= self.packed.most:
            return self.packed(batch.embeds, batch.positions, batch.starts, batch.plan.slots, batch.deepstack)
        return decoder(batch.embeds, batch.positions, self.cache, batch.plan, batch.deepstack, tap=tap)

    def advance(self, rows: Sequence[R], hidden: torch.Tensor, logits: torch.Tensor) -> None:
        """Choose each row's next token by `logits` [rows, V], and call the hooks that follow it."""
        logits = logits.float()
        tokens = self.choose(rows, logits)
        valid = logits.amax(dim=-1).isfinite()
        going_on = []
        for index, (token, ok) in enumerate(torch.stack((tokens, valid.long()), dim=1).tolist()):
            row = rows[index]
            if not ok:
                row.error = OmniError(NOT_A_NUMBER)
                continue
            row.computed = row.prompt_len + len(row.generated)
            row.generated.append(token)
            row.finish_reason = self.why_finished(row)
            if row.finish_reason is None:
                going_on.append(index)
        if going_on:
            chosen = hidden if len(going_on) == len(rows) else hidden[going_on]
            self.after_sampling([rows[index] for index in going_on], chosen)

    def _batch(self, rows: Sequence[R]) -> ForwardBatch[R] | None:
        decoding = [row for row in rows if row.computed]
        prompts: list[tuple[R, PromptInput]] = []
        for row in rows:
            if not row.computed:
                try:
                    prompts.append((row, self.prompt_input(row)))
                except Exception as error:
                    row.error = error
        batched = decoding + [row for row, _ in prompts]
        if not batched:
            return None
        kv_rows = [KVRow(row.pages, row.computed, 1) for row in decoding]
        kv_rows += [KVRow(row.pages, 0, row.prompt_len) for row, _ in prompts]
        starts, total = [], 0
        for kv_row in kv_rows:
            starts.append(total)
            total += kv_row.new
        embeds = [prompt.embeds for _, prompt in prompts]
        positions = [prompt.positions.float() for _, prompt in prompts]
        if decoding:
            embeds.insert(0, self.decode_embeds(decoding))
            device = embeds[0].device
            at = torch.tensor([row.computed + row.rope_delta for row in decoding], dtype=torch.float32)
            positions.insert(0, at.to(device).expand(3, -1))
        device = embeds[0].device
        return ForwardBatch(
            rows=batched,
            decoding=len(decoding),
            starts=starts,
            last=torch.tensor([start + row.new - 1 for start, row in zip(starts, kv_rows, strict=True)], device=device),
            embeds=torch.cat(embeds),
            positions=torch.cat(positions, dim=1),
            plan=AttentionPlan.build(kv_rows, device),
            deepstack=_joined([p.deepstack for _, p in prompts], starts[len(decoding) :]),
        )


def _joined(parts: Sequence[Deepstack | None], starts: Sequence[int]) -> Deepstack | None:
    """The deepstack features of several prompts that begin at `starts` of the flattened batch."""
    present = [(part, start) for part, start in zip(parts, starts, strict=True) if part is not None]
    if not present:
        return None
    tokens = torch.cat([part.tokens + start for part, start in present])
    layers = [torch.cat(layer) for layer in zip(*(part.layers for part, _ in present), strict=True)]
    return Deepstack(tokens, layers)
