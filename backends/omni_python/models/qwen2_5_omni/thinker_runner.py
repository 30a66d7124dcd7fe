"""Runs the thinker, and hands on what it thought of each token that is to be spoken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omni_python.layers.language_model import LanguageModel
from omni_python.model_runner.base import ForwardBatch, PromptInput
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.media.placeholders import MediaTokens, put_media
from omni_python.models.qwen2_5_omni.payloads import HeardPrompt, HeardToken, MediaEmbeds, Question
from omni_python.models.text.answer_runner import AnswerModelRunner, AnswerRequest
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.proto.errors import OmniError
from omni_python.proto.work import IncomingMessage, OutgoingMessage


@dataclass(kw_only=True, eq=False)
class QuestionRequest(AnswerRequest):
    """`question` is kept until the prompt's step is emitted; `states` [n, H] are of the tokens that the newest step
    read, where they are to be spoken."""

    question: Question | None
    states: torch.Tensor | None = None


class Qwen25ThinkerRunner(AnswerModelRunner[QuestionRequest]):
    """The talker gets no token that the thinker itself does not read: the last one, whatever ended the answer."""

    def __init__(
        self,
        thinker: LanguageModel,
        media: MediaTokens,
        eos_ids: Sequence[int],
        token_bytes: TokenBytes,
        decode_target: str = "decode",
        talker_target: str | None = "talker",
    ) -> None:
        super().__init__(eos_ids, token_bytes, decode_target, thinker.model.embed_tokens)
        self._thinker = thinker
        self._media = media
        self._talker_target = talker_target
        self._device = thinker.lm_head.weight.device

    def allocate(self, num_pages: int) -> None:
        self.cache = self._thinker.model.new_cache(num_pages)

    def open(self, message: IncomingMessage) -> QuestionRequest | None:
        question = message.data
        if not isinstance(question, Question):
            return None
        return QuestionRequest(
            request_id=message.request_id,
            sampler=TokenSampler(question.options.thinker),
            prompt_len=len(question.input_ids),
            rope_delta=question.rope_delta,
            options=question.options,
            speech=question.options.speech and self._talker_target is not None,
            question=question,
        )

    def prompt_input(self, row: QuestionRequest) -> PromptInput:
        if row.question is None:
            raise OmniError("a prompt is computed once")
        ids = row.question.input_ids
        embeds = self._thinker.model.embed_tokens(ids.to(self._device))
        media = row.question.embeds or MediaEmbeds()
        for kind, token, features in (
            ("image", self._media.image, media.image),
            ("video", self._media.video, media.video),
            ("audio", self._media.audio, media.audio),
        ):
            put_media(embeds, (ids == token).nonzero()[:, 0], features, kind)
        return PromptInput(embeds, row.question.position_ids.to(self._device))

    def forward(self, batch: ForwardBatch[QuestionRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, _ = self.through(self._thinker.model, batch)
        for row, start in zip(batch.rows, batch.starts, strict=True):
            if row.speech:
                row.states = self._states(row, hidden, batch.embeds, start)
        last = hidden[batch.last]
        return last, self._thinker.lm_head(last)

    def _states(self, row: QuestionRequest, hidden: torch.Tensor, embeds: torch.Tensor, start: int) -> torch.Tensor:
        """Output and embedding added of the tokens that the row reads now; of media the output alone."""
        if row.question is None:
            return hidden[start : start + 1] + embeds[start : start + 1]
        read = slice(start, start + row.prompt_len)
        media = self._media.places(row.question.input_ids).to(embeds.device)
        return hidden[read] + embeds[read].masked_fill(media[:, None], 0)

    def emit_speech(self, row: QuestionRequest) -> list[OutgoingMessage]:
        states, row.states = row.states, None
        if states is None:
            raise OmniError("what was read is handed on once")
        if states.is_cuda:
            # It is sent on the default stream, and its memory must not be used anew on this one before that.
            states.record_stream(torch.cuda.default_stream(states.device))
        chunk: HeardPrompt | HeardToken = HeardToken(states[0])
        if row.question is not None:
            question, options = row.question, row.options
            chunk = HeardPrompt(
                states, question.position_ids, question.rope_delta, options.voice, options.talker, options.stream
            )
            row.question = None
        return [OutgoingMessage(row.request_id, "stream", chunk, self._talker_target)]
