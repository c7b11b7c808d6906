"""Votes over the first 1, 2, ... samples of many orders at once.

Weights are not negative, so adding a sample can only lift its own answer: the winner is the old one
or that answer. One comparison per sample replaces a maximum over all answers.

A tie must be a tie in every order, and the last bit of a float depends on it. So a sum has two
floats, some 32 digits, of which the first is the sum as `select.choose` rounds it. Fixed-point
numbers are exact too, but products of step scores are of too many scales for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_ANSWER = -1
_MAX_CELLS = 1 << 16  # of four arrays, so that they stay in the processor's cache


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
        weights: not negative, NaN abstains; same shape.
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
    width = orders.shape[2]
    lines = orders.reshape(len(orders), -1)
    votes = (answers >= 0) & ~np.isnan(weights) & ~np.isnan(values)
    # One row per place in the orders, one column per order; one more answer collects who abstains.
    answer, amount, value = (
        np.take_along_axis(given, lines, axis=1).reshape(-1, width).T
        for given in (
            np.where(votes, answers, num_answers),
            np.where(votes, weights, 0.0),
            np.where(votes, values, -np.inf),
        )
    )
    rows = np.arange(answer.shape[1])
    sums = np.zeros((len(rows), num_answers + 1))
    rests = np.zeros_like(sums)
    best = np.full((len(rows), num_answers + 1), -np.inf)
    first = np.full((len(rows), num_answers + 1), width, dtype=np.int32)
    sums[:, num_answers] = -1
    leader = np.full(len(rows), num_answers)
    found = np.empty(answer.shape, dtype=np.int64)
    for place in range(width):
        mine = (rows, answer[place])
        total, rests[mine] = _added(sums[mine], rests[mine], amount[place])
        sums[mine] = total
        top = best[mine] = np.maximum(best[mine], value[place])
        since = first[mine] = np.minimum(first[mine], place)
        theirs = (rows, leader)
        is_tie, is_equal = total == sums[theirs], top == best[theirs]
        lifts = total > sums[theirs]
        lifts |= is_tie & ((top > best[theirs]) | (is_equal & (since < first[theirs])))
        lifts &= answer[place] != num_answers
        leader = np.where(lifts, answer[place], leader)
        found[place] = leader
    found[found == num_answers] = NO_ANSWER
    return found.T.reshape(orders.shape)


def _added(sums: Floats, rests: Floats, amounts: Floats) -> tuple[Floats, Floats]:
    """Sums and what their rounding lost, with amounts added to them (Knuth's TwoSum)."""
    totals = sums + amounts
    part = totals - sums
    rests = rests + ((sums - (totals - part)) + (amounts - part))
    rounded: Floats = totals + rests
    return rounded, rests - (rounded - totals)
