"""Runs the thinker: media put into the prompt, answer tokens streamed on as they are chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_python.model_runner.base import ForwardBatch, PromptInput
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.media.placeholders import MediaTokens, put_media
from omni_python.models.ming_omni.payloads import ChatInput, SpokenStart
from omni_python.models.ming_omni.thinker import HEARD, SEEN, TEXT, Thinker
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
    """Emits each answer token to `speech_target` too, where speech is wanted. `media` stand for what is seen and
    heard."""

    def __init__(
        self,
        thinker: Thinker,
        end: int,
        media: MediaTokens,
        token_bytes: TokenBytes,
        decode_target: str = "decode",
        speech_target: str | None = "segmenter",
    ) -> None:
        super().__init__([end], token_bytes, decode_target, thinker.model.embed_tokens)
        self._thinker = thinker
        self._media = media
        self._speech_target = speech_target
        self._device = thinker.lm_head.weight.device

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
            rope_delta=request.prompt.rope_delta,
            options=options,
            speech=options.speech and self._speech_target is not None,
            input=request,
        )

    def prompt_input(self, row: ThinkerRequest) -> PromptInput:
        request = _input(row)
        kinds = self._kinds(request)
        embeds = self._thinker.model.embed_tokens(request.prompt.input_ids.to(self._device))
        for kind, features, what in ((SEEN, request.seen, "picture"), (HEARD, request.heard, "sound")):
            put_media(embeds, (kinds == kind).nonzero()[:, 0], features, what)
        return PromptInput(embeds, request.prompt.position_ids.to(self._device))

    def forward(self, batch: ForwardBatch[ThinkerRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self._thinker.model.read(batch.embeds, batch.positions, self.cache, batch.plan, self._routed(batch))
        last = hidden[batch.last]
        return last, self._thinker.lm_head(last)

    def emit_speech(self, row: ThinkerRequest) -> list[OutgoingMessage]:
        chunks: list[SpokenStart | AnswerToken] = [AnswerToken(row.generated[-1])]
        if len(row.generated) == 1:
            options = row.options
            start = SpokenStart(options.stream, "", options.thinker.stop, row.prompt_len, options.voice, options.talker)
            chunks.insert(0, start)
        return [OutgoingMessage(row.request_id, "stream", chunk, self._speech_target) for chunk in chunks]

    def _routed(self, batch: ForwardBatch[ThinkerRequest]) -> torch.Tensor | None:
        """What each token of the batch stands for; None where all are text. Inputs are of no use any more then."""
        kinds = None
        for row, start in zip(batch.rows[batch.decoding :], batch.starts[batch.decoding :], strict=True):
            request, row.input = _input(row), None
            if request.seen is not None or request.heard is not None:
                if kinds is None:
                    kinds = torch.full((len(batch.embeds),), TEXT, dtype=torch.uint8)
                kinds[start : start + row.prompt_len] = self._kinds(request)
        return None if kinds is None else kinds.to(self._device)

    def _kinds(self, request: ChatInput) -> torch.Tensor:
        """Of each token of the prompt, uint8 [P], on the CPU, where nothing waits for the device."""
        ids = request.prompt.input_ids.cpu()
        kinds = torch.full(ids.shape, TEXT, dtype=torch.uint8)
        kinds[(ids == self._media.image) | (ids == self._media.video)] = SEEN
        kinds[ids == self._media.audio] = HEARD
        return kinds


def _input(row: ThinkerRequest) -> ChatInput:
    if row.input is None:
        raise OmniError("a prompt is computed once")
    return row.input
