"""Runs the language model: the trunk's tokens, each completed to a frame and fed back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from omni_python.layers.fused_decoder import MAX_ROWS
from omni_python.model_runner.base import ARRequest, PromptInput
from omni_python.model_runner.feedback import FeedbackARModelRunner
from omni_python.model_runner.sampler import RowSampling, TokenSampler, choose_tokens
from omni_python.models.fish_s2_pro.dual_ar import DualAR
from omni_python.models.fish_s2_pro.payloads import SpeechFrames, SpeechPrompt, SpeechResult
from omni_python.proto.errors import OmniError
from omni_python.proto.work import IncomingMessage, OutgoingMessage

if TYPE_CHECKING:
    from omni_python.models.fish_s2_pro.trunk_decode import TrunkDecode

RECENT = 16
"""Tokens that the repetition penalty is for; one of them that is drawn again is drawn anew, once, as follows. All three
are SGLang-Omni's values for S2-Pro (repetition-aware sampling: Chen et al. 2024, VALL-E 2)."""
AGAIN_TEMPERATURE, AGAIN_TOP_P = 1.0, 0.9


@dataclass(kw_only=True, eq=False)
class SpeechRequest(ARRequest):
    """`generated` are first codes, and at last maybe the end. `frames` are those not sent yet; of all, the newest one
    makes the next input."""

    prompt: SpeechPrompt | None
    stream: bool
    newest: torch.Tensor | None = None
    frames: list[torch.Tensor] = field(default_factory=list)
    num_frames: int = 0
    slot: int | None = None
    """Where the captured decode step keeps the request's page table, once it decodes."""


class FrameFeedback:
    """The `FeedbackStrategy`: a frame's codes by the codebook head, and their embeddings as the next input."""

    def __init__(self, model: DualAR) -> None:
        self._model = model
        self._device = model.speak.weight.device

    def prefill_forward(self, row: SpeechRequest) -> PromptInput:
        prompt, row.prompt = row.prompt, None
        if prompt is None:
            raise OmniError("a prompt is computed once")
        embeds = self._model.embed_prompt(prompt.tokens.to(self._device), prompt.codes.to(self._device))
        return PromptInput(embeds, torch.arange(len(embeds), device=self._device).expand(3, -1))

    def write_buffers(self, rows: Sequence[SpeechRequest]) -> torch.Tensor:
        return self._model.embed_frames(torch.stack([row.newest for row in rows if row.newest is not None]))

    def extract_output(self, rows: Sequence[SpeechRequest], hidden: torch.Tensor) -> None:
        head = self._model.head
        first = torch.tensor([row.generated[-1] for row in rows], device=self._device)
        others = head.groups - 1
        params = [row.sampler.params for row in rows]
        uniforms = [torch.zeros(others) if row.sampler.greedy else row.sampler.uniforms(others) for row in rows]
        sampling = (
            torch.tensor([p.temperature for p in params]),
            torch.tensor([p.top_p for p in params]),
            torch.tensor([p.top_k for p in params]),
            torch.stack(uniforms),
        )
        rest, _ = head(hidden, head.embeddings(first), *(tensor.to(self._device) for tensor in sampling))
        for row, frame in zip(rows, torch.cat((first[:, None], rest), dim=1), strict=True):
            row.newest = frame
            row.frames.append(frame)
            row.num_frames += 1


class SpeechModelRunner(FeedbackARModelRunner[SpeechRequest]):
    """Frames go to `target`, `frames_per_chunk` at a time. T sampled tokens give T - 1 frames: the last one, the end
    or the one that reaches max_tokens, is not completed."""

    def __init__(
        self,
        model: DualAR,
        target: str = "vocoder",
        frames_per_chunk: int = 5,
        max_running: int = 32,
        fused_rows: int = 0,
    ) -> None:
        """`fused_rows` above 0: the trunk's decode steps are captured, with the fused kernels, for so many requests."""
        super().__init__(model.trunk, model.speak, FrameFeedback(model))
        self._model = model
        self._fused_rows = fused_rows
        self._decode: TrunkDecode | None = None
        self._max_running = max_running
        self._target = target
        self._frames_per_chunk = frames_per_chunk
        self._end = model.config.codes
        self._device = model.speak.weight.device

    def allocate(self, num_pages: int) -> None:
        super().allocate(num_pages + bool(self._fused_rows))
        if self._fused_rows:
            from omni_python.models.fish_s2_pro.trunk_decode import TrunkDecode

            self._decode = TrunkDecode(self._model, self.cache, self._fused_rows)
            self._decode.prepare()
            self.captured_rows = MAX_ROWS
            self.packed = self._decode.decoder.packed_prompts(self.cache)
            self.packed.prepare()
        self._model.head.prepare(self._max_running)

    def release(self, row: SpeechRequest) -> None:
        if row.slot is not None and self._decode is not None:
            self._decode.tables.release(row.slot)
            row.slot = None

    def step_captured(self, rows: Sequence[SpeechRequest]) -> None:
        decode = self._decode
        assert decode is not None, "made with captured_rows"
        slots, frames = [], []
        for row in rows:
            if row.slot is None:
                row.slot = decode.tables.admit(row.pages)
            slots.append(row.slot)
            if row.newest is not None:  # always: the prompt's step made the first
                frames.append(row.newest)
        self.advance(rows, *decode.step(slots, [row.computed for row in rows], torch.stack(frames)))

    def open(self, message: IncomingMessage) -> SpeechRequest | None:
        prompt = message.data
        if not isinstance(prompt, SpeechPrompt):
            return None
        return SpeechRequest(
            request_id=message.request_id,
            sampler=TokenSampler(prompt.sampling),
            prompt_len=len(prompt.tokens),
            prompt=prompt,
            stream=prompt.stream,
        )

    def choose(self, rows: Sequence[SpeechRequest], logits: torch.Tensor) -> torch.Tensor:
        seen = torch.zeros(logits.shape, dtype=torch.bool)
        suppressed = torch.zeros(logits.shape, dtype=torch.bool)
        for index, row in enumerate(rows):
            seen[index, row.generated[-RECENT:]] = True
            suppressed[index, self._end] = row.sampler.params.ignore_eos
        seen, suppressed = seen.to(self._device), suppressed.to(self._device)
        uniforms = torch.stack([torch.zeros(2) if r.sampler.greedy else r.sampler.uniforms(2) for r in rows])
        sampling = self._sampling(rows, uniforms[:, 0])
        tokens = choose_tokens(logits, sampling, seen, suppressed)
        again = RowSampling(
            sampled=sampling.sampled,
            temperature=torch.full_like(sampling.temperature, AGAIN_TEMPERATURE),
            top_k=sampling.top_k,
            top_p=torch.full_like(sampling.top_p, AGAIN_TOP_P),
            repetition_penalty=sampling.repetition_penalty,
            uniforms=uniforms[:, 1].to(self._device),
        )
        repeated = sampling.sampled & seen.gather(1, tokens[:, None])[:, 0]
        return torch.where(repeated, choose_tokens(logits, again, seen, suppressed), tokens)

    def why_finished(self, row: SpeechRequest) -> str | None:
        return "stop" if row.generated[-1] == self._end else super().why_finished(row)

    def emit(self, row: SpeechRequest) -> list[OutgoingMessage]:
        messages = []
        if row.frames and (row.finish_reason or len(row.frames) >= self._frames_per_chunk):
            frames = SpeechFrames(torch.stack(row.frames).cpu(), row.stream)
            row.frames = []
            messages.append(OutgoingMessage(row.request_id, "stream", frames, self._target))
        if row.finish_reason is not None:
            result = SpeechResult(row.num_frames, row.finish_reason, row.stream)
            messages.append(OutgoingMessage(row.request_id, "result", result))
        return messages

    def _sampling(self, rows: Sequence[SpeechRequest], uniforms: torch.Tensor) -> RowSampling:
        params = [row.sampler.params for row in rows]
        return RowSampling(
            sampled=torch.tensor([p.temperature > 0 for p in params], device=self._device),
            temperature=torch.tensor([p.temperature or 1.0 for p in params], device=self._device),
            top_k=torch.tensor([p.top_k for p in params], device=self._device),
            top_p=torch.tensor([p.top_p for p in params], device=self._device),
            repetition_penalty=torch.tensor([p.repetition_penalty for p in params], device=self._device),
            uniforms=uniforms.to(self._device),
        )
