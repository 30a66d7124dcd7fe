"""Runs the Qwen3-Omni talker: reads answer tokens as they come, streams codec frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from omni_python.layers.fused_decoder import MAX_ROWS
from omni_python.model_runner.base import NOT_A_NUMBER, ARRequest, PromptInput
from omni_python.model_runner.feedback import FeedbackARModelRunner
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.qwen3_omni.decode_rows import DecodeInput, Frame, TalkerRow
from omni_python.models.qwen3_omni.limits import SpeechGuard
from omni_python.models.qwen3_omni.payloads import CodecFrames, TalkerPrompt, TalkerResult
from omni_python.models.qwen3_omni.talker import Talker
from omni_python.models.qwen3_omni.talker_prompt import TalkerTokens, UserPart, speech_prompt, user_part
from omni_python.models.text.payloads import AnswerToken
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.work import IncomingMessage, OutgoingMessage

if TYPE_CHECKING:
    from omni_python.models.qwen3_omni.talker_decode import TalkerDecode


@dataclass(kw_only=True, eq=False)
class TalkerRequest(ARRequest):
    """`answer` are the tokens to speak that have come so far; `text_done` says that there are no more.

    `feedback` [H] is the sum of the newest frame's code embeddings; `frames` are those not sent yet.
    """

    user: UserPart | None
    speaker: int
    stream: bool
    answer: list[int]
    text_done: bool = False
    feedback: torch.Tensor | None = None
    frames: list[list[int]] = field(default_factory=list)
    num_frames: int = 0
    place: TalkerRow | None = None
    """Where the captured decode step keeps the request, once it decodes; `feedback` is then there."""

    @property
    def text_step(self) -> int:
        """Which token of the answer goes with the next input: the first one stands in the prompt."""
        return len(self.generated)


class TalkerFeedback:
    """The talker's `FeedbackStrategy`: its prompt, its code predictor, and text tokens added to the feedback."""

    def __init__(self, talker: Talker, tokens: TalkerTokens) -> None:
        self._talker = talker
        self._tokens = tokens
        self._device = talker.codec_head.weight.device

    def prefill_forward(self, row: TalkerRequest) -> PromptInput:
        assert row.user is not None, "kept until the prompt was computed"
        prompt = speech_prompt(self._talker, self._tokens, row.user, row.speaker, row.answer[0])
        row.user = None
        return prompt

    def write_buffers(self, rows: Sequence[TalkerRequest]) -> torch.Tensor:
        ids = torch.tensor([self.text_token(row) for row in rows], device=self._device)
        feedback = torch.stack([row.feedback for row in rows if row.feedback is not None])
        return feedback + self._talker.project_text(ids)

    def extract_output(self, rows: Sequence[TalkerRequest], hidden: torch.Tensor) -> None:
        predictor = self._talker.code_predictor
        first_codes = torch.tensor([row.generated[-1] for row in rows], device=self._device)
        first = self._talker.model.codec_embedding(first_codes)
        sampled = torch.tensor([not row.sampler.greedy for row in rows])
        uniforms = torch.zeros(len(rows), predictor.groups - 1)
        for index, row in enumerate(rows):
            if not row.sampler.greedy:
                uniforms[index] = row.sampler.uniforms(predictor.groups - 1)
        codes, residual = predictor(hidden, first, sampled.to(self._device), uniforms.to(self._device))
        feedback = first + residual
        for index, (row, rest) in enumerate(zip(rows, codes.tolist(), strict=True)):
            row.feedback = feedback[index]
            row.frames.append([row.generated[-1], *rest])
            row.num_frames += 1

    def text_token(self, row: TalkerRequest) -> int:
        """The answer's tokens one a frame, then the end-of-text token once, then padding."""
        if row.text_step < len(row.answer):
            return row.answer[row.text_step]
        return self._tokens.tts_eos if row.text_step == len(row.answer) else self._tokens.tts_pad


class TalkerModelRunner(FeedbackARModelRunner[TalkerRequest]):
    """A request begins with its first chunk, the `TalkerPrompt`; `AnswerToken`s follow; `new_request` says nothing new.

    The first `single_frames` codec frames of a streamed answer are sent to `target` one by one, later ones and those
    of answers that are not streamed `frames_per_chunk` at a time. T sampled tokens give T - 1 frames: the last one,
    the end of speech or the one that reaches max_tokens, is never completed. An answer without a token to speak
    gives no frame.
    """

    def __init__(
        self,
        talker: Talker,
        tokens: TalkerTokens,
        target: str = "code2wav",
        single_frames: int = 10,
        frames_per_chunk: int = 10,
        fused_rows: int = 0,
        guard: SpeechGuard | None = None,
    ) -> None:
        """`fused_rows` above 0: decode steps are captured, with the fused kernels, for up to so many requests."""
        self._feedback = TalkerFeedback(talker, tokens)
        super().__init__(talker.model, talker.codec_head, self._feedback)
        self._tokens = tokens
        self._target = target
        self._single_frames = single_frames
        self._frames_per_chunk = frames_per_chunk
        self._guard = guard or SpeechGuard()
        vocab = talker.codec_head.out_features
        self._never = torch.arange(vocab, device=talker.codec_head.weight.device) >= vocab - 1024
        self._never_nor_end = self._never.clone()
        self._never[tokens.codec_eos] = False
        self._talker = talker
        self._fused_rows = fused_rows
        self._decode: TalkerDecode | None = None

    def allocate(self, num_pages: int) -> None:
        if not self._fused_rows:
            super().allocate(num_pages)
            return
        from omni_python.models.qwen3_omni.fused_code_predictor import FusedCodePredictor
        from omni_python.models.qwen3_omni.talker_decode import TalkerDecode

        super().allocate(num_pages + 1)
        predictor = FusedCodePredictor(self._talker.code_predictor)
        self._talker.code_predictor.fused = predictor
        self._decode = TalkerDecode(
            self._talker, predictor, self._never, self._never_nor_end, self.cache, self._fused_rows
        )
        self._decode.prepare()
        self.captured_rows = MAX_ROWS
        self.packed = self._decode.decoder.packed_prompts(self.cache)
        self.packed.prepare()
        self._talker.code_predictor.prepare(self._fused_rows)

    def release(self, row: TalkerRequest) -> None:
        if row.place is not None and self._decode is not None:
            self._decode.release(row.place)
            row.place = None

    def step_captured(self, rows: Sequence[TalkerRequest]) -> None:
        decode = self._decode
        assert decode is not None, "made with captured_rows"
        for row in rows:
            if row.place is None:
                row.place = decode.admit(row.pages, self.take_feedback(row), row.sampler)
        self.take_frames(rows, decode.step([self.decode_input(row) for row in rows]))

    @staticmethod
    def take_feedback(row: TalkerRequest) -> torch.Tensor:
        """What the frame of the prompt's step left, for the captured step to keep from here on."""
        assert row.feedback is not None, "made with the frame of the prompt's step"
        feedback, row.feedback = row.feedback, None
        return feedback

    def decode_input(self, row: TalkerRequest) -> DecodeInput:
        assert row.place is not None
        return DecodeInput(row.place, row.computed, row.rope_delta, self._feedback.text_token(row))

    def take_frames(self, rows: Sequence[TalkerRequest], frames: Sequence[Frame]) -> None:
        """What the captured step gave."""
        for row, frame in zip(rows, frames, strict=True):
            if not frame.valid:
                row.error = OmniError(NOT_A_NUMBER)
                continue
            row.computed += 1
            row.generated.append(frame.codes[0])
            row.finish_reason = self.why_finished(row)
            if row.finish_reason is None:
                row.frames.append(frame.codes)
                row.num_frames += 1

    def open(self, message: IncomingMessage) -> TalkerRequest | None:
        prompt = message.data
        if not isinstance(prompt, TalkerPrompt):
            return None
        speaker = self._tokens.speakers.get(prompt.voice.lower())
        if speaker is None:
            known = ", ".join(sorted(self._tokens.speakers))
            raise InvalidArgument(f"unknown voice {prompt.voice!r}; this model's voices: {known}")
        user, answer = user_part(prompt, self._tokens)
        return TalkerRequest(
            request_id=message.request_id,
            sampler=TokenSampler(prompt.sampling),
            prompt_len=user.num_tokens + self._tokens.assistant_rows,
            rope_delta=user.next_position - user.num_tokens,
            user=user,
            speaker=speaker,
            stream=prompt.stream,
            answer=answer,
        )

    def take_chunk(self, row: TalkerRequest, data: Any) -> None:
        if isinstance(data, AnswerToken):
            row.answer.append(data.token_id)

    def take_done(self, row: TalkerRequest) -> None:
        row.text_done = True
        if not row.answer:
            row.finish_reason = "stop"

    def is_ready(self, row: TalkerRequest) -> bool:
        return row.text_step < len(row.answer) or (row.text_done and bool(row.answer))

    def suppressed(self, rows: Sequence[TalkerRequest]) -> torch.Tensor:
        """The codec's special tokens, the end of speech not among them, unless the client asked to ignore it."""
        if not any(row.sampler.params.ignore_eos for row in rows):
            return self._never
        return torch.stack([self._never_nor_end if row.sampler.params.ignore_eos else self._never for row in rows])

    def why_finished(self, row: TalkerRequest) -> str | None:
        if row.generated[-1] == self._tokens.codec_eos:
            return "stop"
        if row.text_done and not row.sampler.params.ignore_eos:
            reason = self._guard.why_ended(row.generated, len(row.answer))
            if reason is not None:
                return reason
        return super().why_finished(row)

    def emit(self, row: TalkerRequest) -> list[OutgoingMessage]:
        messages = []
        single = row.stream and row.num_frames <= self._single_frames
        if row.frames and (row.finish_reason or single or len(row.frames) >= self._frames_per_chunk):
            frames = CodecFrames(torch.tensor(row.frames), row.stream)
            row.frames = []
            messages.append(OutgoingMessage(row.request_id, "stream", frames, self._target))
        if row.finish_reason is not None:
            result = TalkerResult(row.num_frames, row.finish_reason, row.stream)
            messages.append(OutgoingMessage(row.request_id, "result", result))
        return messages
