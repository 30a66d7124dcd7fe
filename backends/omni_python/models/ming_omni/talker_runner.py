"""Runs the talker: one piece of text after the other, a patch of latents a step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omni_python.model_runner.base import ARModelRunner, ARRequest, ForwardBatch, PromptInput
from omni_python.model_runner.sampler import TokenSampler
from omni_python.models.ming_omni.payloads import Latents, LatentsResult, Piece, PiecesStart
from omni_python.models.ming_omni.prompt import TalkerPrompt
from omni_python.models.ming_omni.segmenter import MOST_CHARACTERS
from omni_python.models.ming_omni.talker import Talker
from omni_python.models.ming_omni.voices import Voice
from omni_python.proto.work import IncomingMessage, OutgoingMessage

GO_ON, STOP = 0, 1
FEWEST_STEPS = 5
"""Of a piece: the first that may be the last. With `NOISE`, the published talker's."""
NOISE = 0.25
"""Standard deviation of the noise that the flow's steps add at temperature 1."""


@dataclass(kw_only=True, eq=False)
class SpeechRequest(ARRequest):
    """`pieces` are prompts that wait; `piece` counts those begun. `generated` are the decisions to go on or to stop, of
    the piece that is spoken now; `patches` are those not sent yet."""

    stream: bool
    voice: Voice | None
    history: torch.Tensor
    pieces: deque[list[int]] = field(default_factory=deque)
    piece: int = 0
    text_done: bool = False
    next_input: torch.Tensor | None = None
    patches: list[torch.Tensor] = field(default_factory=list)
    num_latents: int = 0
    cut_short: bool = False
    piece_over: bool = False


class TalkerModelRunner(ARModelRunner[SpeechRequest]):
    """A request begins with a `PiecesStart`; `Piece`s follow until the stream is done.

    Each piece is a prompt of its own, with nothing of the pieces before it: the row then begins anew, in its pages.
    Every step gives a patch, the one that decides to stop too. Noise comes from the request's own random numbers.
    """

    def __init__(
        self,
        talker: Talker,
        prompt: TalkerPrompt,
        voices: Mapping[str, Voice],
        target: str = "audio_vae",
        patches_per_chunk: int = 1,
    ) -> None:
        self._voices = voices
        self._talker = talker
        self._config = talker.config
        self._prompt = prompt
        self._target = target
        self._patches_per_chunk = patches_per_chunk
        self._device = talker.stop_head.weight.device
        self._dtype = talker.stop_head.weight.dtype

    def allocate(self, num_pages: int) -> None:
        self.cache = self._talker.model.new_cache(num_pages)

    def open(self, message: IncomingMessage) -> SpeechRequest | None:
        start = message.data
        if not isinstance(start, PiecesStart):
            return None
        voice = self._voices.get(start.voice)
        return SpeechRequest(
            request_id=message.request_id,
            sampler=TokenSampler(start.sampling),
            # what it is admitted for, before any text is known
            prompt_len=self._prompt.longest(MOST_CHARACTERS, *_spoken(voice)),
            stream=start.stream,
            voice=voice,
            history=self._before(voice),
        )

    def take_chunk(self, row: SpeechRequest, data: Any) -> None:
        if isinstance(data, Piece):
            row.pieces.append(self._prompt(data.text, *_spoken(row.voice)))

    def take_done(self, row: SpeechRequest) -> None:
        row.text_done = True
        if not row.computed and not row.pieces:
            row.finish_reason = self._reason(row)

    def is_ready(self, row: SpeechRequest) -> bool:
        return bool(row.computed or row.pieces)

    def prompt_input(self, row: SpeechRequest) -> PromptInput:
        ids = row.pieces.popleft()
        row.prompt_len = len(ids)
        row.piece += 1
        embeds = self._talker.model.embed_tokens(torch.tensor(ids, device=self._device))
        if row.voice is not None:
            embeds = torch.cat((embeds[: -len(row.voice.inputs)], row.voice.inputs))
        return PromptInput(embeds, torch.arange(len(ids), device=self._device).expand(3, -1))

    def decode_embeds(self, rows: Sequence[SpeechRequest]) -> torch.Tensor:
        return torch.stack([row.next_input for row in rows if row.next_input is not None])

    def forward(self, batch: ForwardBatch[SpeechRequest]) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, _ = self.through(self._talker.model, batch)
        last = hidden[batch.last]
        self._speak(batch.rows, last)
        return last, self._talker.stop_head(last)

    def choose(self, rows: Sequence[SpeechRequest], logits: torch.Tensor) -> torch.Tensor:
        may = [len(row.generated) + 1 >= FEWEST_STEPS and not row.sampler.params.ignore_eos for row in rows]
        stops = (logits[:, STOP] > logits[:, GO_ON]) & torch.tensor(may, device=logits.device)
        return stops.long()

    def why_finished(self, row: SpeechRequest) -> str | None:
        stopped = row.generated[-1] == STOP
        row.piece_over = stopped or len(row.generated) >= row.max_tokens
        row.cut_short |= row.piece_over and not stopped
        if row.piece_over and row.text_done and not row.pieces:
            return self._reason(row)
        return None

    def emit(self, row: SpeechRequest) -> list[OutgoingMessage]:
        messages = []
        if row.patches and (row.piece_over or len(row.patches) >= self._patches_per_chunk):
            latents = torch.cat(row.patches).float().cpu()
            numbered = torch.cat((latents, torch.full((len(latents), 1), float(row.piece))), dim=1)
            row.patches = []
            messages.append(OutgoingMessage(row.request_id, "stream", Latents(numbered, row.stream), self._target))
        if row.finish_reason is not None:
            result = LatentsResult(row.num_latents, row.finish_reason, row.stream)
            messages.append(OutgoingMessage(row.request_id, "result", result))
        elif row.piece_over:
            row.generated, row.computed, row.piece_over = [], 0, False
            row.history = self._before(row.voice)
        return messages

    def _speak(self, rows: Sequence[SpeechRequest], hidden: torch.Tensor) -> None:
        """The patch of each row's step, and the input that is made of it."""
        start = torch.stack([self._noise(row, 1)[0] for row in rows]).to(self._device, self._dtype)
        history = torch.stack([row.history for row in rows])
        latents = self._talker.cfm(start, hidden, history, self._added(rows))
        inputs = self._talker.aggregator(latents)
        history = torch.cat((history, latents), dim=1)[:, -self._config.history :]
        for index, row in enumerate(rows):
            row.history, row.next_input = history[index], inputs[index]
            row.patches.append(latents[index])
            row.num_latents += self._config.patch

    def _added(self, rows: Sequence[SpeechRequest]) -> torch.Tensor | None:
        """What the flow's steps add: [steps, rows, patch, latent]; None where no row wants any."""
        if all(row.sampler.greedy for row in rows):
            return None
        shape = (self._config.steps, self._config.patch, self._config.latent)
        noise = [
            torch.zeros(shape)
            if row.sampler.greedy
            else self._noise(row, self._config.steps) * (NOISE * math.sqrt(row.sampler.params.temperature))
            for row in rows
        ]
        return torch.stack(noise, dim=1).to(self._device, self._dtype)

    def _noise(self, row: SpeechRequest, count: int) -> torch.Tensor:
        return torch.randn(count, self._config.patch, self._config.latent, generator=row.sampler.generator)

    def _before(self, voice: Voice | None) -> torch.Tensor:
        """The latents that a piece begins after: the end of the voice's sound, or silence."""
        silence = torch.zeros(self._config.history, self._config.latent, device=self._device, dtype=self._dtype)
        return silence if voice is None else torch.cat((silence, voice.latents))[-self._config.history :]

    @staticmethod
    def _reason(row: SpeechRequest) -> str:
        return "length" if row.cut_short else "stop"


def _spoken(voice: Voice | None) -> tuple[str, int]:
    """The words of a voice, and the patches of its sound."""
    return ("", 0) if voice is None else (voice.text, len(voice.inputs))
