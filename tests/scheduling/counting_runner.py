"""A runner that counts instead of computing a model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from omni_python.layers.kv_cache import PAGE_TOKENS
from omni_python.model_runner.base import ARModelRunner, ARRequest, ForwardBatch, PromptInput
from omni_python.model_runner.sampler import TokenSampler
from omni_python.proto.sampling import SamplingParams
from omni_python.proto.work import IncomingMessage, OutgoingMessage


class Job(msgspec.Struct):
    prompt_len: int = 4
    max_tokens: int = 3
    gated: bool = False
    """Each step waits for a chunk."""
    fail_in: str = ""


@dataclass(kw_only=True, eq=False)
class CountingRequest(ARRequest):
    job: Job
    chunks: int = 0


@dataclass
class Step:
    ids: list[str]
    prompt_tokens: int


class _NoCache:
    """Remembers which pages were cleared."""

    def __init__(self) -> None:
        self.cleared: list[int] = []

    def clear(self, pages: Sequence[int]) -> None:
        self.cleared += pages


@dataclass
class CountingRunner(ARModelRunner[CountingRequest]):
    """Says token n at step n; `hold` stops it within a step."""

    steps: list[Step] = field(default_factory=list)
    owned: dict[str, list[int]] = field(default_factory=dict)
    hold: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.hold.set()

    def allocate(self, num_pages: int) -> None:
        self.cache: Any = _NoCache()

    def open(self, message: IncomingMessage) -> CountingRequest | None:
        job = message.data
        if not isinstance(job, Job):
            return None
        if job.fail_in == "open":
            raise ValueError("open failed")
        sampler = TokenSampler(SamplingParams(max_tokens=job.max_tokens))
        return CountingRequest(request_id=message.request_id, sampler=sampler, prompt_len=job.prompt_len, job=job)

    def take_chunk(self, row: CountingRequest, data: Any) -> None:
        if row.job.fail_in == "chunk":
            raise ValueError("chunk failed")
        row.chunks += 1

    def take_done(self, row: CountingRequest) -> None:
        row.finish_reason = "stop"

    def is_ready(self, row: CountingRequest) -> bool:
        return not row.job.gated or row.chunks > len(row.generated)

    def step(self, rows: Sequence[CountingRequest]) -> None:
        self.hold.wait(10)
        prompts = sum(row.prompt_len for row in rows if not row.computed)
        self.steps.append(Step([row.request_id for row in rows], prompts))
        for row in rows:
            assert len(row.pages) * PAGE_TOKENS >= row.prompt_len + row.max_tokens
            self.owned[row.request_id] = list(row.pages)
            if row.job.fail_in == "step":
                raise ValueError("the step failed")
            if row.job.fail_in == "row":
                row.error = ValueError("the row failed")
                continue
            row.computed = row.computed + 1 if row.computed else row.prompt_len
            row.generated.append(len(row.generated))
            row.finish_reason = self.why_finished(row)

    def emit(self, row: CountingRequest) -> list[OutgoingMessage]:
        if row.job.fail_in == "emit":
            raise ValueError("emit failed")
        kind: Any = "stream" if row.finish_reason is None else "result"
        return [OutgoingMessage(row.request_id, kind, len(row.generated))]

    def prompt_input(self, row: CountingRequest) -> PromptInput:
        raise NotImplementedError

    def decode_embeds(self, rows: Sequence[CountingRequest]) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, batch: ForwardBatch[CountingRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError
