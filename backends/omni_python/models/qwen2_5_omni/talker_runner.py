"""Runs the talker: reads what the thinker thought of the answer's tokens as they come, streams codes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omni_python.model_runner.base import ARModelRunner, ARRequest, ForwardBatch, PromptInput
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.qwen2_5_omni.payloads import HeardPrompt, HeardToken, SpeechCodes, SpeechCodesEnd
from omni_python.models.qwen2_5_omni.talker import Talker, TalkerTokens
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.work import IncomingMessage, OutgoingMessage


@dataclass(frozen=True)
class SpeechStates:
    """What stands for text where the thinker says nothing, each [H]: of each voice, in lower case, the beginning of the
    text; its end; and what follows."""

    begin: Mapping[str, torch.Tensor]
    end: torch.Tensor
    pad: torch.Tensor


@dataclass(kw_only=True, eq=False)
class SpeechRequest(ARRequest):
    """`states` [H] are those of the answer's tokens that have come so far; `text_done` says that there are no more.
    `codes` are those not sent yet."""

    prompt: HeardPrompt | None
    voice: str
    seed: int
    stream: bool
    states: list[torch.Tensor] = field(default_factory=list)
    text_done: bool = False
    codes: list[int] = field(default_factory=list)
    num_codes: int = 0


class Qwen25TalkerRunner(ARModelRunner[SpeechRequest]):
    """A request begins with its `HeardPrompt`; `HeardToken`s follow; `new_request` says nothing new.

    Codes go to `target`, `codes_per_chunk` at a time. T sampled tokens give T - 1 codes: the last one, the end or the
    one that reaches max_tokens, is left out, as by Hugging Face. An answer without a token to speak gives none.
    """

    def __init__(
        self,
        talker: Talker,
        tokens: TalkerTokens,
        states: SpeechStates,
        target: str = "token2wav",
        codes_per_chunk: int = 12,
    ) -> None:
        self._talker = talker
        self._tokens = tokens
        self._states = states
        self._target = target
        self._codes_per_chunk = codes_per_chunk
        self._device = talker.codec_head.weight.device
        ids = torch.arange(talker.codec_head.out_features, device=self._device)
        ends = torch.tensor(sorted(tokens.ends), device=self._device)
        # The start token is what Hugging Face suppresses; of what lies beyond the codes it can make no waveform.
        self._never_nor_end = (ids >= tokens.codes) | (ids == tokens.begin) | torch.isin(ids, ends)
        self._never = self._never_nor_end & ~torch.isin(ids, ends)

    def allocate(self, num_pages: int) -> None:
        self.cache = self._talker.model.new_cache(num_pages)

    def open(self, message: IncomingMessage) -> SpeechRequest | None:
        prompt = message.data
        if not isinstance(prompt, HeardPrompt):
            return None
        if prompt.voice not in self._states.begin:
            known = ", ".join(self._states.begin)
            raise InvalidArgument(f"unknown voice {prompt.voice!r}; this model's voices: {known}")
        seed = prompt.sampling.seed
        request = SpeechRequest(
            request_id=message.request_id,
            sampler=TokenSampler(prompt.sampling),
            prompt_len=len(prompt.states) + 2,
            rope_delta=prompt.rope_delta,
            prompt=prompt,
            voice=prompt.voice,
            seed=random.getrandbits(63) if seed is None else seed,
            stream=prompt.stream,
        )
        if prompt.sampling.repetition_penalty != 1.0:
            # Hugging Face penalises what stands in the prompt too, and so the pad token, an end, from the beginning.
            request.sampler.seen = torch.zeros(len(self._never), dtype=torch.bool, device=self._device)
            request.sampler.seen[[self._tokens.mask, self._tokens.pad, self._tokens.begin]] = True
        return request

    def take_chunk(self, row: SpeechRequest, data: Any) -> None:
        if isinstance(data, HeardToken):
            row.states.append(data.state.to(self._device, copy=True))

    def take_done(self, row: SpeechRequest) -> None:
        row.text_done = True
        if not row.states:
            row.finish_reason = "stop"

    def is_ready(self, row: SpeechRequest) -> bool:
        return row.text_done or len(row.generated) < len(row.states)

    def prompt_input(self, row: SpeechRequest) -> PromptInput:
        prompt, row.prompt = row.prompt, None
        if prompt is None:
            raise OmniError("a prompt is computed once")
        codes = torch.tensor([self._tokens.pad, self._tokens.begin], device=self._device)
        begin = torch.stack((self._states.begin[row.voice], row.states[0])) + self._talker.embed_tokens(codes)
        states = torch.cat((prompt.states.to(begin), begin))
        positions = prompt.position_ids.to(self._device)
        after = positions.shape[1] + row.rope_delta + torch.arange(2, device=self._device)
        positions = torch.cat((positions, after.expand(3, -1)), dim=1)
        return PromptInput(self._talker.thinker_to_talker_proj(states), positions)

    def decode_embeds(self, rows: Sequence[SpeechRequest]) -> torch.Tensor:
        codes = torch.tensor([row.generated[-1] for row in rows], device=self._device)
        states = torch.stack([self._state(row, len(row.generated)) for row in rows])
        return self._talker.thinker_to_talker_proj(self._talker.embed_tokens(codes) + states)

    def _state(self, row: SpeechRequest, step: int) -> torch.Tensor:
        """The answer's tokens one a code, then the end of the text once, then padding."""
        if step < len(row.states):
            return row.states[step]
        return self._states.end if step == len(row.states) else self._states.pad

    def forward(self, batch: ForwardBatch[SpeechRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, _ = self.through(self._talker.model, batch)
        last = hidden[batch.last]
        return last, self._talker.codec_head(last)

    def suppressed(self, rows: Sequence[SpeechRequest]) -> torch.Tensor:
        if not any(row.sampler.params.ignore_eos for row in rows):
            return self._never
        return torch.stack([self._never_nor_end if row.sampler.params.ignore_eos else self._never for row in rows])

    def why_finished(self, row: SpeechRequest) -> str | None:
        return "stop" if row.generated[-1] in self._tokens.ends else super().why_finished(row)

    def after_sampling(self, rows: Sequence[SpeechRequest], hidden: torch.Tensor) -> None:
        for row in rows:
            row.codes.append(row.generated[-1])
            row.num_codes += 1

    def emit(self, row: SpeechRequest) -> list[OutgoingMessage]:
        messages = []
        if row.codes and (row.finish_reason or len(row.codes) >= self._codes_per_chunk):
            chunk = SpeechCodes(torch.tensor(row.codes)[:, None], row.stream, row.voice, row.seed)
            row.codes = []
            messages.append(OutgoingMessage(row.request_id, "stream", chunk, self._target))
        if row.finish_reason is not None:
            end = SpeechCodesEnd(row.num_codes, row.finish_reason, row.stream)
            messages.append(OutgoingMessage(row.request_id, "result", end))
        return messages
