"""Runs the thinker: clips put into the prompt, answer tokens streamed on as they are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omni_python.model_runner.base import ForwardBatch, PromptInput
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.ming_omni.payloads import ChatInput, SpokenStart
from omni_python.models.ming_omni.thinker import Thinker
from omni_python.models.text.answer_runner import AnswerModelRunner, AnswerRequest
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.models.text.payloads import AnswerToken
from omni_python.proto.errors import OmniError
from omni_python.proto.work import IncomingMessage, OutgoingMessage


@dataclass(kw_only=True, eq=False)
class ThinkerRequest(AnswerRequest):
    """`input` is kept until the prompt was computed."""

    input: ChatInput | None


class ThinkerModelRunner(AnswerModelRunner[ThinkerRequest]):
    """Emits each answer token to `speech_target` too, where speech is wanted. `clip_token` stands for sound."""

    def __init__(
        self,
        thinker: Thinker,
        end: int,
        clip_token: int,
        token_bytes: TokenBytes,
        decode_target: str = "decode",
        speech_target: str | None = "segmenter",
    ) -> None:
        super().__init__([end], token_bytes, decode_target)
        self._thinker = thinker
        self._clip_token = clip_token
        self._speech_target = speech_target
        self._device = thinker.lm_head.weight.device
        self._dtype = thinker.lm_head.weight.dtype

    def allocate(self, num_pages: int) -> None:
        self.cache = self._thinker.model.new_cache(num_pages)

    def open(self, message: IncomingMessage) -> ThinkerRequest | None:
        if message.type != "new_request":
            return None
        request: ChatInput = message.data
        options = request.prompt.options
        return ThinkerRequest(
            request_id=message.request_id,
            sampler=TokenSampler(options.thinker),
            prompt_len=len(request.prompt.input_ids),
            options=options,
            speech=options.speech and self._speech_target is not None,
            input=request,
        )

    def prompt_input(self, row: ThinkerRequest) -> PromptInput:
        request = _input(row)
        ids = request.prompt.input_ids.cpu()  # places are sought there, where nothing waits for the device
        embeds = self._thinker.model.embed_tokens(ids.to(self._device))
        places = (ids == self._clip_token).nonzero()[:, 0]
        given = 0 if request.embeds is None else len(request.embeds)
        if len(places) != given:
            raise OmniError(f"the prompt has {len(places)} placeholders of sound, but there are {given} embeddings")
        if request.embeds is not None:
            embeds = embeds.index_copy(0, places.to(self._device), request.embeds.to(self._device, self._dtype))
        return PromptInput(embeds, torch.arange(row.prompt_len, device=self._device).expand(3, -1))

    def decode_embeds(self, rows: Sequence[ThinkerRequest]) -> torch.Tensor:
        ids = torch.tensor([row.generated[-1] for row in rows], device=self._device)
        embeds: torch.Tensor = self._thinker.model.embed_tokens(ids)
        return embeds

    def forward(self, batch: ForwardBatch[ThinkerRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self._thinker.model.read(batch.embeds, batch.positions, self.cache, batch.plan, self._heard(batch))
        last = hidden[batch.last]
        return last, self._thinker.lm_head(last)

    def emit_speech(self, row: ThinkerRequest) -> list[OutgoingMessage]:
        chunks: list[SpokenStart | AnswerToken] = [AnswerToken(row.generated[-1])]
        if len(row.generated) == 1:
            options = row.options
            start = SpokenStart(options.stream, "", options.thinker.stop, row.prompt_len, options.voice, options.talker)
            chunks.insert(0, start)
        return [OutgoingMessage(row.request_id, "stream", chunk, self._speech_target) for chunk in chunks]

    def _heard(self, batch: ForwardBatch[ThinkerRequest]) -> torch.Tensor | None:
        """Which tokens of the batch stand for sound; None where none does. Inputs are of no use any more then."""
        heard = None
        for row, start in zip(batch.rows[batch.decoding :], batch.starts[batch.decoding :], strict=True):
            request, row.input = _input(row), None
            if request.embeds is not None:
                if heard is None:
                    heard = torch.zeros(len(batch.embeds), dtype=torch.bool)
                heard[start : start + row.prompt_len] = request.prompt.input_ids.cpu() == self._clip_token
        return None if heard is None else heard.to(self._device)


def _input(row: ThinkerRequest) -> ChatInput:
    if row.input is None:
        raise OmniError("a prompt is computed once")
    return row.input
