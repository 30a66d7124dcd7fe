"""Runs the language model: the trunk's tokens, each completed to a frame and fed back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from omni_python.layers.fused_decoder import MAX_ROWS
from omni_python.model_runner.base import NOT_A_NUMBER, ARRequest, PromptInput
from omni_python.model_runner.feedback import FeedbackARModelRunner
from omni_python.model_runner.sampler import RowSampling, TokenSampler
from omni_python.models.fish_s2_pro.dual_ar import DualAR
from omni_python.models.fish_s2_pro.first_code import RECENT, choose_first
from omni_python.models.fish_s2_pro.payloads import SpeechFrames, SpeechPrompt, SpeechResult
from omni_python.proto.errors import OmniError
from omni_python.proto.work import IncomingMessage, OutgoingMessage

if TYPE_CHECKING:
    from omni_python.models.fish_s2_pro.frame_decode import FrameDecode, SpeechRow


@dataclass(kw_only=True, eq=False)
class SpeechRequest(ARRequest):
    """`generated` are first codes, and at last maybe the end. `frames` are those not sent yet; of all, the newest one
    makes the next input."""

    prompt: SpeechPrompt | None
    stream: bool
    newest: list[int] = field(default_factory=list)
    frames: list[list[int]] = field(default_factory=list)
    num_frames: int = 0
    place: SpeechRow | None = None
    """Where the captured decode step keeps what it needs, once the request decodes."""

    def take(self, frame: list[int]) -> None:
        self.newest = frame
        self.frames.append(frame)
        self.num_frames += 1


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
        return self._model.embed_frames(torch.tensor([row.newest for row in rows], device=self._device))

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
        for row, frame in zip(rows, torch.cat((first[:, None], rest), dim=1).tolist(), strict=True):
            row.take(frame)


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
        """`fused_rows` above 0: decode steps are captured, with the fused kernels, for up to so many requests."""
        super().__init__(model.trunk, model.speak, FrameFeedback(model))
        self._model = model
        self._fused_rows = fused_rows
        self._decode: FrameDecode | None = None
        self._max_running = max_running
        self._target = target
        self._frames_per_chunk = frames_per_chunk
        self._end = model.config.codes
        self._device = model.speak.weight.device

    def allocate(self, num_pages: int) -> None:
        super().allocate(num_pages + bool(self._fused_rows))
        if self._fused_rows:
            from omni_python.layers.fused_frame_completer import FusedFrameCompleter
            from omni_python.models.fish_s2_pro.frame_decode import FrameDecode

            head = self._model.head
            others = head.groups - 1
            fused = FusedFrameCompleter(head.model, [head.output.weight] * others, [head.embeddings.weight] * others)
            head.fused = fused
            self._decode = FrameDecode(self._model, fused, self.cache, self._fused_rows)
            self._decode.prepare()
            self.captured_rows = MAX_ROWS
            self.packed = self._decode.decoder.packed_prompts(self.cache)
            self.packed.prepare()
        self._model.head.prepare(self._max_running)

    def release(self, row: SpeechRequest) -> None:
        if row.place is not None and self._decode is not None:
            self._decode.release(row.place)
            row.place = None

    def step_captured(self, rows: Sequence[SpeechRequest]) -> None:
        decode = self._decode
        assert decode is not None, "made with captured_rows"
        places = []
        for row in rows:
            if row.place is None:
                row.place = decode.admit(row.pages, row.generated[-1], row.newest, row.sampler)
            places.append(row.place)
        made = decode.step(places, [row.computed for row in rows], [len(row.generated) for row in rows])
        for row, frame in zip(rows, made, strict=True):
            if frame is None:
                row.error = OmniError(NOT_A_NUMBER)
                continue
            row.computed += 1
            row.generated.append(frame[0])
            row.finish_reason = self.why_finished(row)
            if row.finish_reason is None:
                row.take(frame)

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
        uniforms = uniforms.to(self._device)
        return choose_first(logits, self._sampling(rows, uniforms[:, 0]), uniforms[:, 1], seen, suppressed)

    def why_finished(self, row: SpeechRequest) -> str | None:
        return "stop" if row.generated[-1] == self._end else super().why_finished(row)

    def emit(self, row: SpeechRequest) -> list[OutgoingMessage]:
        messages = []
        if row.frames and (row.finish_reason or len(row.frames) >= self._frames_per_chunk):
            frames = SpeechFrames(torch.tensor(row.frames), row.stream)
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
            uniforms=uniforms,
        )
