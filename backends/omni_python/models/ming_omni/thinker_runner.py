"""Runs the thinker: answer tokens streamed on as they are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omni_python.model_runner.base import ARModelRunner, ARRequest, ForwardBatch, PromptInput
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.ming_omni.payloads import ChatPrompt, SpokenStart
from omni_python.models.ming_omni.thinker import Thinker
from omni_python.models.text.detokenizer import Detokenizer, StopStrings, TokenBytes
from omni_python.models.text.payloads import AnswerToken, DecodeStart, ThinkerResult
from omni_python.proto.work import IncomingMessage, OutgoingMessage


@dataclass(kw_only=True, eq=False)
class ThinkerRequest(ARRequest):
    prompt: ChatPrompt
    detokenizer: Detokenizer | None
    stop: StopStrings
    targets: list[str]


class ThinkerModelRunner(ARModelRunner[ThinkerRequest]):
    """Emits each answer token to `decode_target`, and, where speech is wanted, to `speech_target`."""

    def __init__(
        self,
        thinker: Thinker,
        end: int,
        token_bytes: TokenBytes,
        decode_target: str = "decode",
        speech_target: str | None = "segmenter",
    ) -> None:
        self._thinker = thinker
        self._end = end
        self._token_bytes = token_bytes
        self._decode_target = decode_target
        self._speech_target = speech_target
        self._device = thinker.lm_head.weight.device

    def allocate(self, num_pages: int) -> None:
        self.cache = self._thinker.model.new_cache(num_pages)

    def open(self, message: IncomingMessage) -> ThinkerRequest | None:
        if message.type != "new_request":
            return None
        prompt: ChatPrompt = message.data
        options = prompt.options
        speaks = options.speech and self._speech_target is not None
        return ThinkerRequest(
            request_id=message.request_id,
            sampler=TokenSampler(options.thinker),
            prompt_len=len(prompt.input_ids),
            prompt=prompt,
            detokenizer=Detokenizer(self._token_bytes) if options.thinker.stop else None,
            stop=StopStrings(options.thinker.stop),
            targets=[self._decode_target, *([self._speech_target] if speaks and self._speech_target else [])],
        )

    def prompt_input(self, row: ThinkerRequest) -> PromptInput:
        embeds = self._thinker.model.embed_tokens(row.prompt.input_ids.to(self._device))
        return PromptInput(embeds, torch.arange(row.prompt_len, device=self._device).expand(3, -1))

    def decode_embeds(self, rows: Sequence[ThinkerRequest]) -> torch.Tensor:
        ids = torch.tensor([row.generated[-1] for row in rows], device=self._device)
        embeds: torch.Tensor = self._thinker.model.embed_tokens(ids)
        return embeds

    def forward(self, batch: ForwardBatch[ThinkerRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, _ = self.through(self._thinker.model, batch)
        last = hidden[batch.last]
        return last, self._thinker.lm_head(last)

    def why_finished(self, row: ThinkerRequest) -> str | None:
        token = row.generated[-1]
        if token == self._end and not row.sampler.params.ignore_eos:
            return "stop"
        if row.detokenizer is not None:
            row.stop.push(row.detokenizer.push(token))
            if row.stop.stopped:
                return "stop"
        return super().why_finished(row)

    def emit(self, row: ThinkerRequest) -> list[OutgoingMessage]:
        messages = self._starts(row) if len(row.generated) == 1 else []
        token = AnswerToken(row.generated[-1])
        messages += [OutgoingMessage(row.request_id, "stream", token, target) for target in row.targets]
        if row.finish_reason is not None:
            speech = len(row.targets) > 1
            result = ThinkerResult(row.generated, row.finish_reason, row.prompt_len, speech)
            messages.append(OutgoingMessage(row.request_id, "result", result))
        return messages

    def _starts(self, row: ThinkerRequest) -> list[OutgoingMessage]:
        options = row.prompt.options
        stop, length = options.thinker.stop, row.prompt_len
        starts = [DecodeStart(options.stream, options.echo_text, stop, length)]
        if len(row.targets) > 1:
            starts.append(SpokenStart(options.stream, "", stop, length, options.voice, options.talker))
        return [
            OutgoingMessage(row.request_id, "stream", start, target)
            for start, target in zip(starts, row.targets, strict=True)
        ]
