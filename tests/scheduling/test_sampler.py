"""The sampler against Hugging Face's logits processors and against exact frequencies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from omni_python.model_runner.sampler import RowSampling, TokenSampler, choose_tokens, draw, sample_tokens
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.sampling import SamplingParams

VOCAB = 40


def params(**given: object) -> SamplingParams:
    return SamplingParams(**given)  # type: ignore[arg-type]


def expected_distribution(logits: torch.Tensor, sampling: SamplingParams, seen: list[int]) -> torch.Tensor:
    ids = torch.tensor([seen], dtype=torch.int64)
    scores = logits[None].clone()
    if seen:
        scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(ids, scores)
    scores = TemperatureLogitsWarper(float(sampling.temperature))(ids, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(ids, scores)
    return TopPLogitsWarper(sampling.top_p)(ids, scores)[0].softmax(-1)


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.5, "top_p": 0.6},
        {"temperature": 0.9, "top_k": 12, "top_p": 0.8, "repetition_penalty": 1.3},
        {"temperature": 1.0, "top_k": 1000, "top_p": 0.999},
    ],
    ids=str,
)
def test_frequencies_are_those_of_hugging_face(given: dict[str, object]) -> None:
    """Every cut of the uniform number's range falls on the right token: the numbers are spread evenly, not random."""
    sampling = params(**given)
    logits = torch.randn(VOCAB) * 2
    seen = [3, 7, 7, 11] if sampling.repetition_penalty != 1 else []
    expected = expected_distribution(logits, sampling, seen)
    scores = logits.clone()
    for token in set(seen):
        scores[token] = scores[token] / sampling.repetition_penalty if scores[token] > 0 else scores[token] * 1.3
    count = 20000
    uniforms = (torch.arange(count) + 0.5) / count
    tokens = draw((scores / sampling.temperature).expand(count, -1), sampling.top_k, sampling.top_p, uniforms)
    frequencies = torch.bincount(tokens, minlength=VOCAB) / count
    torch.testing.assert_close(frequencies, expected, rtol=0, atol=1e-3)
    assert not frequencies[expected == 0].any()


def test_a_row_draws_the_same_in_every_batch() -> None:
    logits = torch.randn(60, VOCAB)
    kinds: list[dict[str, object]] = [
        {"temperature": 0.8, "seed": 5, "top_k": 7, "repetition_penalty": 1.2},
        {"temperature": 1.3, "seed": 6},
        {"repetition_penalty": 1.5},
        {"temperature": 0.5, "seed": 7, "top_p": 0.5},
    ]

    def alone(kind: dict[str, object]) -> list[int]:
        sampler = TokenSampler(params(**kind))
        return [int(sample_tokens(row[None], [sampler])) for row in logits]

    samplers = [TokenSampler(params(**kind)) for kind in kinds]
    together = torch.stack([sample_tokens(row.expand(len(kinds), -1), samplers) for row in logits])
    for column, kind in enumerate(kinds):
        assert together[:, column].tolist() == alone(kind)
    assert alone(kinds[0]) != alone({**kinds[0], "seed": 50})


def test_greedy_with_penalty_avoids_what_was_said() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0, -1.05]])
    sampler = TokenSampler(params(repetition_penalty=1.1))
    assert [int(sample_tokens(logits, [sampler])) for _ in range(3)] == [0, 1, 0]
    negative = TokenSampler(params(repetition_penalty=1.1))
    assert [int(sample_tokens(logits[:, 2:], [negative])) for _ in range(3)] == [0, 1, 0]


def test_suppressed_tokens_are_never_chosen() -> None:
    logits = torch.arange(VOCAB, dtype=torch.float32).expand(2, -1)
    rows = [TokenSampler(params()), TokenSampler(params(temperature=50.0, seed=1))]
    high = torch.arange(VOCAB) >= 5
    for _ in range(50):
        greedy, drawn = sample_tokens(logits, rows, high).tolist()
        assert greedy == 4 and drawn < 5
    each = torch.stack([high, ~high])
    greedy, drawn = sample_tokens(logits, rows, each).tolist()
    assert greedy == 4 and drawn >= 5


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2**-24])
def test_the_ends_of_the_range_give_a_token_that_is_kept(uniform: float) -> None:
    logits = torch.randn(1, VOCAB)
    token = int(draw(logits, 3, 0.9, torch.tensor([uniform])))
    assert token in logits[0].topk(3).indices.tolist()


def test_without_a_seed_answers_differ() -> None:
    logits = torch.zeros(1, 10000)
    drawn = {int(sample_tokens(logits, [TokenSampler(params(temperature=1.0))])) for _ in range(8)}
    assert len(drawn) > 1


NUMBERS = torch.linspace(-5.0, 12.0, VOCAB)[torch.randperm(VOCAB)]


@pytest.mark.parametrize(
    ("given", "logits", "expected"),
    [
        ({"temperature": 1e-40}, NUMBERS, "likeliest"),
        ({"temperature": 1e-38}, NUMBERS, "likeliest"),
        ({"temperature": 1e-40}, NUMBERS - 50.0, "likeliest"),
        ({"temperature": 1e-5}, NUMBERS * 100.0, "likeliest"),
        ({"temperature": 1.0, "top_p": 1e-50}, NUMBERS, "likeliest"),
        ({"temperature": 1.0, "top_k": 2**63}, NUMBERS, "any"),
        ({"temperature": 1.0, "repetition_penalty": 1e-45}, NUMBERS, "any"),
        ({"temperature": 1.0}, torch.full((VOCAB,), torch.nan), "any"),
        ({"temperature": 1.0}, NUMBERS.index_fill(0, torch.tensor([3]), torch.nan), "any"),
        ({"temperature": 1.0}, torch.full((VOCAB,), -torch.inf), "any"),
        ({"temperature": 1.0, "top_k": 3}, torch.full((VOCAB,), torch.inf), "any"),
    ],
)
@pytest.mark.parametrize("top_k", [0, 5])
def test_no_row_hurts_another(given: dict[str, Any], logits: torch.Tensor, expected: str, top_k: int) -> None:
    """What is too small to calculate with, too large, or no number: the other row gets what it gets alone."""
    kind = {"temperature": 1.0, "top_k": top_k, "seed": 5, "repetition_penalty": 1.2}
    bad, beside, alone = (TokenSampler(params(**kind)) for kind in (given, kind, kind))
    for normal in torch.randn(20, VOCAB):
        odd, token = sample_tokens(torch.stack([logits, normal]), [bad, beside]).tolist()
        assert token == int(sample_tokens(normal[None], [alone]))
        assert 0 <= odd < VOCAB
        if expected == "likeliest":
            assert odd == int(logits.argmax())


def test_a_tiny_penalty_repeats_what_was_said() -> None:
    logits = torch.tensor([[1.0, 0.9, 0.8]])
    sampler = TokenSampler(params(repetition_penalty=1e-45, temperature=1.0, seed=0))
    first, *others = (int(sample_tokens(logits, [sampler])) for _ in range(6))
    assert set(others) == {first}


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(
    ("temperature", "top_p", "penalty", "value"),
    [(1.0, 1e-50, 1.0, 2.0), (1e-40, 1.0, 1.0, 2.0), (1.0, 1.0, 1e-45, 2.0), (1.0, 1.0, 1.0, torch.nan)],
)
def test_on_the_device_no_row_hurts_another(
    sampled: bool, temperature: float, top_p: float, penalty: float, value: float
) -> None:
    """Greedy rows are drawn too, and their draw is not used."""
    rows = RowSampling(
        sampled=torch.tensor([sampled, True]),
        temperature=torch.tensor([temperature, 0.8]),
        top_k=torch.tensor([2**62, 7]),
        top_p=torch.tensor([top_p, 0.9]),
        repetition_penalty=torch.tensor([penalty, 1.1]),
        uniforms=torch.rand(2),
    )
    alone = RowSampling(**{name: tensor[1:] for name, tensor in vars(rows).items()})
    logits, seen, none = torch.randn(2, VOCAB), torch.rand(2, VOCAB) < 0.3, torch.zeros(VOCAB, dtype=torch.bool)
    logits[0, 4], seen[0, 4] = value, True
    odd, token = choose_tokens(logits, rows, seen, none).tolist()
    assert token == int(choose_tokens(logits[1:], alone, seen[1:], none))
    assert 0 <= odd < VOCAB


@pytest.mark.parametrize("name", ["top_k", "max_tokens"])
def test_counts_have_a_bound(name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"sampling_parameters: .* <= 2147483647 .*{name}"):
        params().override({name: 2**31}, "sampling_parameters")


def test_on_the_device_the_same_tokens_are_chosen() -> None:
    """`choose_tokens`, whose parameters are tensors, against `sample_tokens` with the same random numbers."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0.8, "seed": 5, "top_k": 7, "repetition_penalty": 1.2},
        {"temperature": 1.3, "seed": 6},
        {"repetition_penalty": 1.5},
        {"temperature": 0.5, "seed": 7, "top_p": 0.5, "top_k": 1000},
    ]
    samplers, twins = ([TokenSampler(params(**kind)) for kind in kinds] for _ in range(2))
    given = [sampler.params for sampler in samplers]
    suppressed = torch.arange(VOCAB) % 9 == 0
    seen = torch.zeros(len(kinds), VOCAB, dtype=torch.bool)
    for logits in torch.randn(60, len(kinds), VOCAB) * 2:
        rows = RowSampling(
            sampled=torch.tensor([not sampler.greedy for sampler in samplers]),
            temperature=torch.tensor([p.temperature or 1.0 for p in given]),
            top_k=torch.tensor([p.top_k for p in given]),
            top_p=torch.tensor([p.top_p for p in given]),
            repetition_penalty=torch.tensor([p.repetition_penalty for p in given]),
            uniforms=torch.cat([torch.zeros(1) if twin.greedy else twin.uniforms(1) for twin in twins]),
        )
        chosen = choose_tokens(logits, rows, seen, suppressed)
        assert chosen.tolist() == sample_tokens(logits, samplers, suppressed).tolist()
        seen[torch.arange(len(kinds)), chosen] = True
