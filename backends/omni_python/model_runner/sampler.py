"""Choosing the next token of each row of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch

from omni_python.proto.sampling import SamplingParams

LEAST = 1e-5
"""A lower temperature is as good as 0, and a lower repetition penalty as this one: logits divided by something much
smaller would be infinite."""


class TokenSampler:
    """One request's choice of tokens: its parameters, its own random numbers, and which tokens it has generated.

    The random numbers are drawn on the CPU, one a token, so what a seed gives depends neither on the device nor on
    the rest of the batch. `params` are what the client sent, but for numbers too small to calculate with (`LEAST`).
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = _usable(params)
        self.generator = torch.Generator("cpu")
        if params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(params.seed)
        self.seen: torch.Tensor | None = None
        """bool [V] on the logits' device; kept where there is a repetition penalty alone."""

    @property
    def greedy(self) -> bool:
        """Whether it takes the likeliest token, and draws none."""
        return self.params.temperature == 0.0

    def uniforms(self, count: int) -> torch.Tensor:
        """`count` numbers in 0..1, float32."""
        return torch.rand(count, generator=self.generator)


def sample_tokens(
    logits: torch.Tensor, samplers: Sequence[TokenSampler], suppressed: torch.Tensor | None = None
) -> torch.Tensor:
    """The next token of each row: int64 [B], from float32 `logits` [B, V].

    In this order: repetition penalty over the row's own generated tokens, none of `suppressed` (bool [V] or [B, V]),
    temperature, top_k, top_p, and a draw from what is left; the likeliest token where the temperature is 0.

    Whatever a row holds, the others get the tokens that they would get without it. One whose logits are not all
    numbers, or too large for the draw, gets some token that means nothing.
    """
    logits = _penalise(logits, samplers)
    if suppressed is not None:
        logits = logits.masked_fill(suppressed, -torch.inf)
    tokens = logits.argmax(dim=-1)
    drawing = [row for row, sampler in enumerate(samplers) if not sampler.greedy]
    if drawing:
        rows = torch.tensor(drawing, device=logits.device)
        params = [samplers[row].params for row in drawing]
        uniforms = torch.cat([samplers[row].uniforms(1) for row in drawing]).to(logits.device)
        temperature = torch.tensor([p.temperature for p in params], device=logits.device)
        top_p = torch.tensor([p.top_p for p in params], device=logits.device)
        drawn = draw(logits[rows] / temperature[:, None], [p.top_k for p in params], top_p, uniforms)
        tokens = tokens.index_copy(0, rows, drawn)
    for row, sampler in enumerate(samplers):
        if sampler.seen is not None:
            sampler.seen.index_fill_(0, tokens[row : row + 1], True)
    return tokens


@dataclass(frozen=True)
class RowSampling:
    """What `choose_tokens` needs of B rows, on the device: int64 `top_k` (0: all), bool `sampled`, else float32 [B]."""

    sampled: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    repetition_penalty: torch.Tensor
    uniforms: torch.Tensor


def choose_tokens(
    logits: torch.Tensor, rows: RowSampling, seen: torch.Tensor, suppressed: torch.Tensor
) -> torch.Tensor:
    """What `sample_tokens` does, with all that a row needs on the device, so that it can be captured: int64 [B].

    `seen` bool [B, V] are the tokens that the penalty is for; `temperature` must not be below `LEAST`, even of greedy
    rows: else the row gets some token that means nothing.
    """
    penalty = rows.repetition_penalty[:, None]
    logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    logits = logits.masked_fill(suppressed, -torch.inf)
    drawn = draw(logits / rows.temperature[:, None], rows.top_k, rows.top_p, rows.uniforms)
    return torch.where(rows.sampled, drawn, logits.argmax(dim=-1))


def draw(
    logits: torch.Tensor,
    top_k: int | Sequence[int] | torch.Tensor,
    top_p: float | torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row by the inverse of the distribution function: int64 [B] from `logits` [B, V].

    Kept are the `top_k` likeliest tokens (0, or more than there are: all), then of those the fewest that together have
    `top_p` of the probability, one at least. `uniforms` [B] are in 0..1; `top_k` and `top_p` are for all rows or one a
    row ([B]).
    """
    vocab = logits.shape[-1]
    if isinstance(top_k, torch.Tensor):
        ordered, index = logits.sort(dim=-1, descending=True)
        rank = torch.arange(vocab, device=logits.device)
        ordered = ordered.masked_fill((rank >= top_k[:, None]) & (top_k[:, None] > 0), -torch.inf)
        return _draw_ordered(ordered, index, top_p, uniforms)
    limits = [min(k or vocab, vocab) for k in ([top_k] * len(logits) if isinstance(top_k, int) else top_k)]
    widest = max(limits)
    ordered, index = logits.topk(widest, dim=-1) if widest < vocab else logits.sort(dim=-1, descending=True)
    if min(limits) < widest:
        rank = torch.arange(widest, device=logits.device)
        ordered = ordered.masked_fill(rank >= torch.tensor(limits, device=logits.device)[:, None], -torch.inf)
    return _draw_ordered(ordered, index, top_p, uniforms)


def _draw_ordered(
    ordered: torch.Tensor, index: torch.Tensor, top_p: float | torch.Tensor, uniforms: torch.Tensor
) -> torch.Tensor:
    """Draw of logits in descending order, of which `index` tells the tokens."""
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    limit = top_p[:, None] if isinstance(top_p, torch.Tensor) else top_p
    probabilities = probabilities.masked_fill(before >= limit, 0.0)
    reached = probabilities.cumsum(dim=-1)
    pick = torch.searchsorted(reached, uniforms[:, None] * reached[:, -1:], right=True)
    # A row of NaN, and one whose top_p is 0 in float32, has no probability left and takes the first token: an index
    # outside its row would fail the step of all rows, and on a GPU leave the process unable to compute.
    last = ((probabilities > 0).sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    return index.gather(-1, torch.minimum(pick, last))[:, 0]


def _usable(params: SamplingParams) -> SamplingParams:
    """`params` with a temperature of 0 or at least `LEAST`, and such a penalty."""
    if params.temperature < LEAST:
        params = msgspec.structs.replace(params, temperature=0.0)
    if params.repetition_penalty < LEAST:
        params = msgspec.structs.replace(params, repetition_penalty=LEAST)
    return params


def _penalise(logits: torch.Tensor, samplers: Sequence[TokenSampler]) -> torch.Tensor:
    rows = [row for row, sampler in enumerate(samplers) if sampler.params.repetition_penalty != 1.0]
    if not rows:
        return logits
    for row in rows:
        if samplers[row].seen is None:
            samplers[row].seen = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    seen = torch.stack([sampler.seen for row in rows if (sampler := samplers[row]).seen is not None])
    penalty = torch.tensor([samplers[row].params.repetition_penalty for row in rows], device=logits.device)[:, None]
    chosen = logits[rows]
    penalised = torch.where(chosen > 0, chosen / penalty, chosen * penalty)
    return logits.index_copy(0, torch.tensor(rows, device=logits.device), torch.where(seen, penalised, chosen))
