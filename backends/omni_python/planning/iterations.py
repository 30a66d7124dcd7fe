"""How long a request waits for its first step in a loop, and how long that takes: the chain of the loop's iterations.

An iteration is a step of those who are in the loop, and the first steps of all who came during the iteration before: a
long one makes the next one long, too. And it is longer while others compute on the device, which lasts for some time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from omni_python.planning.sharing import Stretch
from omni_python.planning.spread import Spread

_MOST_STATES = 240
_HARDLY = 1e-4
_NEVER = 1e-12


_COMPANIES = 4
"""Numbers of those who begin together, from 0, that are told apart; more are taken together."""


class Company(NamedTuple):
    """Those who begin with so many `others` in the same iteration (None: with a loop that was idle), their share of all
    arrivals, and their time to the end of the first step."""

    chance: float
    others: float | None
    time: Spread


class Begin(NamedTuple):
    """The wait for the end of the iteration that an arrival finds, and from there to the end of its first step; and
    both together for those who come while the stage that feeds the loop computes. `company` and `fed_company` are the
    same times by who comes with them."""

    wait: Spread
    first: Spread
    fed: Spread | None
    company: tuple[Company, ...]
    fed_company: tuple[Company, ...]


def to_begin(
    rate: float, first: float, step: float, use: float, slower: Stretch, slow: float, quiet: Stretch | None = None
) -> Begin:
    """Of those who come to a loop that iterates for the share `use` of the time. A `first` step and a `step` of the
    others (seconds) are as long as others on the device make them on average; `slow` is the variance of `step` by the
    square of its mean, where it stays for many iterations. Who finds the loop idle is slowed by `quiet`, or as all are
    where that is None.

    The chain's states are how many came in the iteration before, a Poisson number, and the level of `slower`; it goes
    to another level after `slower.lasting` on average. An arrival finds an iteration the likelier the longer that is,
    at any of its moments, and shares the next one with all others who came in the same.
    """
    levels = _levels(step / (1 - rate * first), slower)
    factors = levels[:, 0]
    news = np.arange(_news(rate, first, step, float(factors.max()), len(factors)))
    lengths = (step + first * news)[:, None] * factors
    moves = _moves(lengths, levels, slower.lasting)
    found = _stationary(rate, lengths, moves) * lengths
    idle = (
        _idle(first / slower.steady, quiet)
        if quiet
        else [float((found / found.sum()).sum(0) @ (factors * first) ** power) for power in (1, 2, 3)]
    )
    wait, whole = _what_arrivals_find(rate, first, use, lengths, found / found.sum(), moves, factors, slow, idle)
    rest = Spread(*(all_of - part for all_of, part in zip(whole, wait, strict=True)))
    company = _by_company(rate, first, use, lengths, found / found.sum(), moves, factors, slow, idle)
    fed = found * np.array(slower.fed)
    if not fed.sum():
        return Begin(wait, rest, None, company, ())
    _, beside = _what_arrivals_find(rate, first, use, lengths, fed / fed.sum(), moves, factors, slow, idle)
    fed_company = _by_company(rate, first, use, lengths, fed / fed.sum(), moves, factors, slow, idle)
    return Begin(wait, rest, beside, company, fed_company)


def _news(rate: float, first: float, step: float, most: float, levels: int) -> int:
    """So many may come in an iteration: ten standard deviations more than the mean."""
    load = rate * first
    mean = rate * step / (1 - load) * most
    return min(_MOST_STATES // levels, math.ceil(mean + 10 * math.sqrt(mean / (1 - load**2)) + 12))


def _levels(iteration: float, slower: Stretch) -> np.ndarray:
    """Factors by the mean one, and how often an iteration begins with each.

    A speed is the mean over an iteration of one that keeps its value for `lasting`, exponentially: that much less of
    its variance is left. A level that makes iterations longer is begun with less often than it is there.
    """
    speeds = np.array([slower.steady / factor for factor, _ in slower.levels])
    chances = np.array([chance for _, chance in slower.levels])
    if len(speeds) == 1:
        return np.ones((1, 2))
    past = iteration / slower.lasting
    kept = 2 * (past - 1 + math.exp(-past)) / past**2 if past > _HARDLY else 1.0
    factors = 1 / (1 + (speeds - 1) * math.sqrt(kept))
    begun = chances * -np.expm1(-past * factors) / factors
    return np.stack([factors, begun / begun.sum()], axis=1)


def _moves(lengths: np.ndarray, levels: np.ndarray, lasting: float) -> np.ndarray:
    """[new, level, next level]: the probabilities of the next iteration's level."""
    count = len(levels)
    if count == 1:
        return np.ones((len(lengths), 1, 1))
    stays = np.exp(-lengths / lasting)[:, :, None]
    moves: np.ndarray = stays * np.eye(count) + (1 - stays) * levels[:, 1]
    return moves


def _stationary(rate: float, lengths: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """[new, level]: how many of the iterations are such."""
    news, levels = lengths.shape
    come = poisson(rate * lengths.ravel(), news).reshape(news, levels, news)
    come[..., -1] += 1 - come.sum(-1)
    chain = (come[:, :, :, None] * moves[:, :, None, :]).reshape(news * levels, news * levels)
    system = chain.T - np.eye(news * levels)
    system[-1] = 1.0
    right = np.zeros(news * levels)
    right[-1] = 1.0
    return np.maximum(np.linalg.solve(system, right), 0.0).reshape(news, levels)


def _what_arrivals_find(
    rate: float,
    first: float,
    use: float,
    lengths: np.ndarray,
    found: np.ndarray,
    moves: np.ndarray,
    factors: np.ndarray,
    slow: float,
    idle: Sequence[float],
) -> tuple[Spread, Spread]:
    """U L, and U L + F (1 + N), where U is uniform in 0..1, N a Poisson number of mean rate L, and F a
    first step at the next iteration's level."""
    grown = 1 + slow, (1 + slow) * (1 + 2 * slow), (1 + slow) * (1 + 2 * slow) * (1 + 3 * slow)
    one, two, three = (lengths ** (power + 1) * more for power, more in enumerate(grown))
    waits = [one / 2, two / 3, three / 4]
    # Of N, and of U L N and the like, given L.
    crowd = [rate * one, rate * one + rate**2 * two, rate * one + 3 * rate**2 * two + rate**3 * three]
    mixed = [rate * two / 2, rate * two / 2 + rate**2 * three / 2, rate * three / 3]  # U L N, U L N^2, (U L)^2 N
    begin = [0.0, 0.0, 0.0]
    for level, factor in enumerate(factors):
        weight = use * found * moves[:, :, level]
        last = factor * first
        ones = last * (1 + crowd[0])
        squares = last**2 * (1 + 2 * crowd[0] + crowd[1])
        cubes = last**3 * (1 + 3 * crowd[0] + 3 * crowd[1] + crowd[2])
        with_one, with_square = last * (waits[0] + mixed[0]), last**2 * (waits[0] + 2 * mixed[0] + mixed[1])
        begin[0] += float((weight * (waits[0] + ones)).sum())
        begin[1] += float((weight * (waits[1] + 2 * with_one + squares)).sum())
        begin[2] += float((weight * (waits[2] + 3 * last * (waits[1] + mixed[2]) + 3 * with_square + cubes)).sum())
    for power in range(3):
        begin[power] += (1 - use) * idle[power]
    wait = Spread.of_moments(*(use * float((found * moment).sum()) for moment in waits))
    return wait, Spread.of_moments(*begin)


def _idle(first: float, quiet: Stretch) -> list[float]:
    """The moments of a first step in a loop that was idle."""
    return [sum(chance * (first * factor) ** power for factor, chance in quiet.levels) for power in (1, 2, 3)]


def _by_company(
    rate: float,
    first: float,
    use: float,
    lengths: np.ndarray,
    found: np.ndarray,
    moves: np.ndarray,
    factors: np.ndarray,
    slow: float,
    idle: Sequence[float],
) -> tuple[Company, ...]:
    """U L + F (1 + N) by N, which is the number of those who come in the same iteration, and for an idle loop."""
    grown = 1 + slow, (1 + slow) * (1 + 2 * slow), (1 + slow) * (1 + 2 * slow) * (1 + 3 * slow)
    waits = [lengths ** (power + 1) * more / (power + 2) for power, more in enumerate(grown)]
    counts = poisson(rate * lengths.ravel(), _COMPANIES).reshape(*lengths.shape, _COMPANIES)
    kinds = [(counts[..., number], np.full(lengths.shape, float(number))) for number in range(_COMPANIES)]
    more = np.maximum(1 - counts.sum(-1), 0.0)
    left = rate * lengths - counts @ np.arange(_COMPANIES)
    kinds.append((more, left / np.maximum(more, _NEVER)))
    made = [Company(1 - use, None, Spread.of_moments(*idle))]
    for chances, others in kinds:
        weight = found * chances
        share = float(weight.sum())
        if share < _HARDLY:
            continue
        moments = [0.0, 0.0, 0.0]
        for level, factor in enumerate(factors):
            now, last = weight * moves[:, :, level] / share, factor * first * (1 + others)
            moments[0] += float((now * (waits[0] + last)).sum())
            moments[1] += float((now * (waits[1] + 2 * last * waits[0] + last**2)).sum())
            moments[2] += float((now * (waits[2] + 3 * last * waits[1] + 3 * last**2 * waits[0] + last**3)).sum())
        made.append(Company(use * share, float((weight * others).sum()) / share, Spread.of_moments(*moments)))
    whole = sum(one.chance for one in made)
    return tuple(one._replace(chance=one.chance / whole) for one in made if one.chance > 0)


def poisson(means: np.ndarray, count: int) -> np.ndarray:
    """Probabilities of 0 up to `count`, one row for each mean."""
    numbers = np.arange(count)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count)))))
    result: np.ndarray = np.exp(numbers * np.log(means)[:, None] - means[:, None] - factorials)
    return result
