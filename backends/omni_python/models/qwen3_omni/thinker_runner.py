"""Runs a multimodal language model: media features put into the prompt, answer tokens streamed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from omni_python.layers.decoder import Deepstack
from omni_python.layers.fused_decoder import MAX_ROWS
from omni_python.model_runner.base import ForwardBatch, PromptInput
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.media.placeholders import MediaTokens, put_media
from omni_python.models.qwen3_omni.payloads import TalkerPrompt, ThinkerInput
from omni_python.models.qwen3_omni.thinker import Thinker
from omni_python.models.text.answer_runner import AnswerModelRunner, AnswerRequest
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.models.text.payloads import AnswerToken
from omni_python.proto.work import IncomingMessage, OutgoingMessage

if TYPE_CHECKING:
    from omni_python.models.qwen3_omni.thinker_decode import ThinkerDecode


@dataclass(kw_only=True, eq=False)
class ThinkerRequest(AnswerRequest):
    """`media_hidden` is the tapped hidden state at media positions, held from the prompt's step until it is sent."""

    input: ThinkerInput | None
    media_hidden: torch.Tensor | None = None
    slot: int | None = None
    """Where the captured decode step keeps the request, once it decodes."""


class ThinkerModelRunner(AnswerModelRunner[ThinkerRequest]):
    """Emits each answer token to `decode_target`, and, where speech is wanted, to `talker_target`.

    The talker gets no token that the thinker itself does not read: the last one, whatever ended the answer.
    `accept_layer` is the tapped hidden state that the talker reads at media positions (see `Decoder.forward`).
    """

    def __init__(
        self,
        thinker: Thinker,
        media: MediaTokens,
        eos_ids: Sequence[int],
        accept_layer: int,
        token_bytes: TokenBytes,
        decode_target: str = "decode",
        talker_target: str | None = "talker_ar",
        fused_rows: int = 0,
        deepstack_layers: int = 0,
    ) -> None:
        """`fused_rows` above 0: decode steps are captured, with the fused kernels, for up to so many requests, and
        short prompts too, whose vision features come with `deepstack_layers` layers of deepstack features."""
        super().__init__(eos_ids, token_bytes, decode_target, thinker.model.embed_tokens)
        self._fused_rows = fused_rows
        self._deepstack_layers = deepstack_layers
        self._decode: ThinkerDecode | None = None
        self._thinker = thinker
        self._media = media
        self._accept_layer = accept_layer
        self._talker_target = talker_target
        self._device = thinker.lm_head.weight.device
        self._dtype = thinker.lm_head.weight.dtype

    def allocate(self, num_pages: int) -> None:
        self.cache = self._thinker.model.new_cache(num_pages + bool(self._fused_rows))
        if self._fused_rows:
            from omni_python.models.qwen3_omni.thinker_decode import ThinkerDecode

            self._decode = ThinkerDecode(self._thinker, self.cache, self._fused_rows)
            self._decode.prepare()
            self.captured_rows = MAX_ROWS
            self.packed = self._decode.decoder.packed_prompts(self.cache, self._accept_layer, self._deepstack_layers)
            self.packed.prepare()

    def release(self, row: ThinkerRequest) -> None:
        if row.slot is not None and self._decode is not None:
            self._decode.tables.release(row.slot)
            row.slot = None

    def step_captured(self, rows: Sequence[ThinkerRequest]) -> None:
        decode = self._decode
        assert decode is not None, "made with captured_rows"
        slots = []
        for row in rows:
            if row.slot is None:
                row.slot = decode.tables.admit(row.pages)
            slots.append(row.slot)
        logits = decode.step(
            slots,
            [row.computed for row in rows],
            [row.generated[-1] for row in rows],
            [row.computed + row.rope_delta for row in rows],
        )
        self.advance(rows, logits, logits)

    def open(self, message: IncomingMessage) -> ThinkerRequest | None:
        if message.type != "new_request":
            return None
        request: ThinkerInput = message.data
        options = request.prompt.options
        return ThinkerRequest(
            request_id=message.request_id,
            sampler=TokenSampler(options.thinker),
            prompt_len=len(request.prompt.input_ids),
            rope_delta=request.prompt.rope_delta,
            options=options,
            speech=options.speech and self._talker_target is not None,
            input=request,
        )

    def prompt_input(self, row: ThinkerRequest) -> PromptInput:
        request = _input(row)
        vision, audio = request.vision, request.audio
        ids = request.prompt.input_ids.cpu()  # places are sought there, where nothing waits for the device
        embeds = self._thinker.model.embed_tokens(ids.to(self._device))
        image_at, video_at, audio_at = (
            (ids == token).nonzero()[:, 0] for token in (self._media.image, self._media.video, self._media.audio)
        )
        put_media(embeds, image_at, vision.image if vision else None, "image")
        put_media(embeds, video_at, vision.video if vision else None, "video")
        put_media(embeds, audio_at, audio.audio if audio else None, "audio")
        deepstack = None
        if vision is not None and (vision.image_deepstack or vision.video_deepstack):
            # The order of the places does not matter, so images and videos need not be interleaved.
            places = [at for at, has in ((image_at, vision.image_deepstack), (video_at, vision.video_deepstack)) if has]
            kinds = [kind for kind in (vision.image_deepstack, vision.video_deepstack) if kind]
            layers = [torch.cat([t.to(self._device, self._dtype) for t in layer]) for layer in zip(*kinds, strict=True)]
            deepstack = Deepstack(torch.cat(places).to(self._device), layers)
        return PromptInput(embeds, request.prompt.position_ids.to(self._device), deepstack)

    def forward(self, batch: ForwardBatch[ThinkerRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        speaking = [
            (row, start)
            for row, start in zip(batch.rows[batch.decoding :], batch.starts[batch.decoding :], strict=True)
            if row.speech and (_input(row).vision is not None or _input(row).audio is not None)
        ]
        hidden, tapped = self.through(self._thinker.model, batch, tap=self._accept_layer if speaking else None)
        for row, start in speaking:
            assert tapped is not None
            media = self._media.places(_input(row).prompt.input_ids).nonzero()[:, 0].to(self._device)
            row.media_hidden = tapped[start : start + row.prompt_len][media]
        last = hidden[batch.last]
        return last, self._thinker.lm_head(last)

    def emit(self, row: ThinkerRequest) -> list[OutgoingMessage]:
        messages = super().emit(row)
        row.input = row.media_hidden = None  # the embeddings are of no more use and may be large
        return messages

    def emit_speech(self, row: ThinkerRequest) -> list[OutgoingMessage]:
        messages = [self._talker_prompt(row)] if len(row.generated) == 1 else []
        if row.finish_reason is None:
            token = AnswerToken(row.generated[-1])
            messages.append(OutgoingMessage(row.request_id, "stream", token, self._talker_target))
        return messages

    def _talker_prompt(self, row: ThinkerRequest) -> OutgoingMessage:
        if row.media_hidden is not None and row.media_hidden.is_cuda:
            # It is sent on the default stream, and its memory must not be used anew on this one before that.
            row.media_hidden.record_stream(torch.cuda.default_stream(row.media_hidden.device))
        prompt, options = _input(row).prompt, row.options
        talker = TalkerPrompt(
            prompt.input_ids, prompt.position_ids, row.media_hidden, options.voice, options.talker, options.stream
        )
        return OutgoingMessage(row.request_id, "stream", talker, self._talker_target)


def _input(row: ThinkerRequest) -> ThinkerInput:
    assert row.input is not None, "the input is kept until the first token was emitted"
    return row.input
