"""Runs a model that answers in text: tokens to the stage that decodes them, and what ends an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn

from omni_python.model_runner.base import ARModelRunner, ARRequest
from omni_python.models.text.detokenizer import Detokenizer, StopStrings, TokenBytes
from omni_python.models.text.options import GenerationOptions
from omni_python.models.text.payloads import AnswerToken, DecodeStart, ThinkerResult
from omni_python.proto.work import OutgoingMessage


@dataclass(kw_only=True, eq=False)
class AnswerRequest(ARRequest):
    """`speech`: whether the answer goes to the stages that speak it too."""

    options: GenerationOptions
    speech: bool
    detokenizer: Detokenizer | None = None
    stop: StopStrings = field(init=False)

    def __post_init__(self) -> None:
        self.stop = StopStrings(self.options.thinker.stop)


A = TypeVar("A", bound=AnswerRequest)


class AnswerModelRunner(ARModelRunner[A]):
    """Emits each answer token to `decode_target`, and what `emit_speech` adds."""

    def __init__(
        self, eos_ids: Sequence[int], token_bytes: TokenBytes, decode_target: str, embed_tokens: nn.Embedding
    ) -> None:
        self._eos_ids = frozenset(eos_ids)
        self._token_bytes = token_bytes
        self._decode_target = decode_target
        self._embed_tokens = embed_tokens

    def decode_embeds(self, rows: Sequence[A]) -> torch.Tensor:
        """[rows, H]: of each row's newest token."""
        ids = torch.tensor([row.generated[-1] for row in rows], device=self._embed_tokens.weight.device)
        embeds: torch.Tensor = self._embed_tokens(ids)
        return embeds

    def emit_speech(self, row: A) -> list[OutgoingMessage]:
        """What the newest step gives to the stages that speak the answer; called for rows with `speech` alone."""
        return []

    def why_finished(self, row: A) -> str | None:
        token = row.generated[-1]
        if token in self._eos_ids and not row.sampler.params.ignore_eos:
            return "stop"
        if row.options.thinker.stop:
            if row.detokenizer is None:
                row.detokenizer = Detokenizer(self._token_bytes)
            row.stop.push(row.detokenizer.push(token))
            if row.stop.stopped:
                return "stop"
        return super().why_finished(row)

    def emit(self, row: A) -> list[OutgoingMessage]:
        messages = []
        if len(row.generated) == 1:
            options = row.options
            start = DecodeStart(options.stream, options.echo_text, options.thinker.stop, row.prompt_len)
            messages.append(OutgoingMessage(row.request_id, "stream", start, self._decode_target))
        token = AnswerToken(row.generated[-1])
        messages.append(OutgoingMessage(row.request_id, "stream", token, self._decode_target))
        if row.speech:
            messages += self.emit_speech(row)
        if row.finish_reason is not None:
            result = ThinkerResult(row.generated, row.finish_reason, row.prompt_len, row.speech)
            messages.append(OutgoingMessage(row.request_id, "result", result))
        return messages
