"""Votes over the first 1, 2, ... samples of many orders at once.

Weights are not negative, so adding a sample can only lift its own answer: the winner is the old one
or that answer. One comparison per sample replaces a maximum over all answers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_ANSWER = -1
_SCALE = float(1 << 40)
_MAX_CELLS = 1 << 22


def seeded_orders(counts: Ints, width: int, num_orders: int, seed: int) -> Ints:
    """Random orders of every problem's samples.

    Args:
        counts: samples of each problem, shape (problems,).
        width: samples of the largest problem; places beyond a problem's own count come last.
        num_orders: orders per problem.
        seed: the same seed gives the same orders, so that all selections see the same subsets.

    Returns:
        Shape (problems, num_orders, width).
    """
    rng = np.random.default_rng(seed)
    keys = rng.random((len(counts), num_orders, width))
    keys += np.arange(width) >= counts[:, None, None]
    return np.argsort(keys, axis=2).astype(np.int64)


def disjoint_orders(num_problems: int, width: int, size: int) -> Ints:
    """The samples in groups of `size` as they stand, shape (problems, width // size, size)."""
    groups = np.arange(width // size * size).reshape(1, -1, size)
    return np.broadcast_to(groups, (num_problems, *groups.shape[1:]))


def winners(orders: Ints, answers: Ints, weights: Floats, values: Floats) -> Ints:
    """The answer that wins after each sample of each order.

    The largest sum of weights wins; ties go to the answer with the better best member, then to the
    one that came first. With weights of 0 it is best-of-k.

    Args:
        orders: sample indices, shape (problems, orders, k).
        answers: answer of each sample as a small number, `NO_ANSWER` abstains; shape (problems, n).
        weights: not negative, NaN abstains; same shape. Sums are exact, in units of 2^-40.
        values: what the best member is told by; same shape.

    Returns:
        Winning answers, `NO_ANSWER` where nobody voted; shape of `orders`.
    """
    num_answers = int(answers.max(initial=0)) + 1
    chunk = max(1, _MAX_CELLS // (orders.shape[1] * num_answers))
    parts = [
        _winners(orders[part], answers[part], weights[part], values[part], num_answers)
        for part in _slices(len(orders), chunk)
    ]
    return np.concatenate(parts) if parts else np.zeros(orders.shape, dtype=np.int64)


def _slices(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, start + size)


def _winners(
    orders: Ints, answers: Ints, weights: Floats, values: Floats, num_answers: int
) -> Ints:
    votes = (answers >= 0) & ~np.isnan(weights) & ~np.isnan(values)
    answers = np.where(votes, answers, num_answers)  # one more column collects who abstains
    amounts = np.where(votes, np.rint(np.where(votes, weights, 0) * _SCALE), 0).astype(np.int64)
    values = np.where(votes, values, -np.inf)
    lines = orders.shape[0] * orders.shape[1]
    rows = np.arange(lines)
    problem = np.repeat(np.arange(orders.shape[0]), orders.shape[1])
    sums = np.zeros((lines, num_answers + 1), dtype=np.int64)
    best = np.full((lines, num_answers + 1), -np.inf)
    first = np.full((lines, num_answers + 1), orders.shape[2], dtype=np.int64)
    sums[:, num_answers] = -1
    winner = np.full(lines, num_answers)
    found = np.empty((lines, orders.shape[2]), dtype=np.int64)
    for place, sample in enumerate(orders.reshape(lines, -1).T):
        answer = answers[problem, sample]
        sums[rows, answer] += amounts[problem, sample]
        best[rows, answer] = np.maximum(best[rows, answer], values[problem, sample])
        first[rows, answer] = np.minimum(first[rows, answer], place)
        more = sums[rows, answer] - sums[rows, winner]
        better = best[rows, answer] - np.where(winner == answer, np.inf, best[rows, winner])
        earlier = first[rows, answer] < first[rows, winner]
        lifts = (more > 0) | ((more == 0) & ((better > 0) | ((better == 0) & earlier)))
        winner = np.where(lifts & (answer != num_answers), answer, winner)
        found[:, place] = winner
    return np.where(found == num_answers, NO_ANSWER, found).reshape(orders.shape)
