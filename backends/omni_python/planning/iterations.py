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
from omni_python.planning.spread import Mixture, Part, Spread

_MOST_STATES = 240
_HARDLY = 1e-4
_NEVER = 1e-9


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
    rate: float,
    first: float,
    step: float,
    use: float,
    slower: Stretch,
    slow: float,
    quiet: Stretch | None = None,
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
    found /= found.sum()
    if quiet is None:
        idle = [float(found.sum(0) @ (factors * first) ** power) for power in (1, 2, 3)]
    else:
        idle = [
            sum(chance * (first / slower.steady * by) ** power for by, chance in quiet.levels) for power in (1, 2, 3)
        ]
    others = poisson(rate * lengths.ravel(), len(news)).reshape(*lengths.shape, len(news))
    company = _by_company(first, use, lengths, found, moves, factors, slow, idle, others)
    fed = found * np.array(slower.fed)
    beside: tuple[Company, ...] = ()
    if fed.sum():
        beside = _by_company(first, use, lengths, fed / fed.sum(), moves, factors, slow, idle, others)
    wait = Spread.of_moments(*(use * float((found * moment).sum()) for moment in _waits(lengths, slow)))
    whole = _together(company)
    rest = Spread(*(all_of - part for all_of, part in zip(whole, wait, strict=True)))
    return Begin(wait, rest, _together(beside) if beside else None, company, beside)


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


def _waits(lengths: np.ndarray, slow: float) -> list[np.ndarray]:
    """The moments of U L, where U is uniform in 0..1."""
    grown = 1 + slow, (1 + slow) * (1 + 2 * slow), (1 + slow) * (1 + 2 * slow) * (1 + 3 * slow)
    return [lengths ** (power + 1) * more / (power + 2) for power, more in enumerate(grown)]


def _by_company(
    first: float,
    use: float,
    lengths: np.ndarray,
    found: np.ndarray,
    moves: np.ndarray,
    factors: np.ndarray,
    slow: float,
    idle: Sequence[float],
    others: np.ndarray,
) -> tuple[Company, ...]:
    """U L + F (1 + N) by N, whose probabilities are `others`, with F a first step at the next iteration's level; and
    the first step of those who find the loop idle."""
    count = others.shape[-1]
    numbers, flat = np.arange(count), others.reshape(-1, count)
    chances, moments = np.zeros(count), np.zeros((3, count))
    for level, factor in enumerate(factors):
        weight = found * moves[:, :, level]
        last = factor * first * (1 + numbers)
        none, one, two, three = (
            (weight * moment).ravel() @ flat for moment in (np.ones_like(lengths), *_waits(lengths, slow))
        )
        chances += none
        moments[0] += one + last * none
        moments[1] += two + 2 * last * one + last**2 * none
        moments[2] += three + 3 * last * two + 3 * last**2 * one + last**3 * none
    kinds = [np.array([number]) for number in range(_COMPANIES)] + [np.arange(_COMPANIES, count)]
    made = [Company(1 - use, None, Spread.of_moments(idle[0], idle[1], idle[2]))] if use < 1 else []
    for kind in kinds:
        share = float(chances[kind].sum())
        if share > _NEVER:
            of_them = moments[:, kind].sum(1) / share
            number = float(chances[kind] @ kind) / share
            made.append(Company(use * share, number, Spread.of_moments(*map(float, of_them))))
    whole = sum(one.chance for one in made)
    return tuple(one._replace(chance=one.chance / whole) for one in made)


def _together(company: Sequence[Company]) -> Spread:
    return Mixture(tuple(Part(one.chance, one.time) for one in company)).moments()


def poisson(means: np.ndarray, count: int) -> np.ndarray:
    """Probabilities of 0 up to `count`, one row for each mean."""
    numbers = np.arange(count)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count)))))
    result: np.ndarray = np.exp(numbers * np.log(means)[:, None] - means[:, None] - factorials)
    return result
