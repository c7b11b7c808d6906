"""Exact means over subsets against brute force over all of them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsearch.benchmarks.metrics import MAX_EXACT, best_of_k, majority_at_k, pass_at_k
from stepsearch.benchmarks.votes import NO_ANSWER, disjoint_orders, seeded_orders, winners

answers_lists = st.lists(st.integers(-1, 3), min_size=1, max_size=8)


def brute(n: int, outcome) -> list[float]:
    return [
        float(np.mean([outcome(s) for s in itertools.combinations(range(n), k)]))
        for k in range(1, n + 1)
    ]


@settings(deadline=None)
@given(st.integers(1, 9), st.data())
def test_pass_at_k(n: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, n))
    found = brute(n, lambda subset: any(i < right for i in subset))
    assert pass_at_k(n, right) == pytest.approx(found)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8), st.integers(0, 3))
def test_best_of_k(hits: list[float], outside: int) -> None:
    n = len(hits) + outside

    def outcome(subset: tuple[int, ...]) -> float:
        leading = min(subset)
        return hits[leading] if leading < len(hits) else 0.0

    assert best_of_k(hits, n) == pytest.approx(brute(n, outcome))


@settings(deadline=None)
@given(answers_lists, st.lists(st.sampled_from([0.0, 1.0, 0.5]), min_size=4, max_size=4))
def test_majority_at_k(answers: list[int], hits: list[float]) -> None:
    def outcome(subset: tuple[int, ...]) -> float:
        votes = [answers[i] for i in subset if answers[i] >= 0]
        if not votes:
            return 0.0
        most = max(map(votes.count, votes))
        tied = [a for a in set(votes) if votes.count(a) == most]
        return sum(hits[a] for a in tied) / len(tied)

    sizes = [answers.count(a) for a in range(4)]
    assert majority_at_k(sizes, hits, len(answers)) == pytest.approx(brute(len(answers), outcome))


def test_majority_at_k_stays_exact_for_many_samples() -> None:
    sizes = [300, 299, 1, 1, 1]
    both = [majority_at_k(sizes, np.eye(5)[j].tolist(), 700) for j in range(5)]
    total = np.sum(both, axis=0)
    voted = [1 - math.comb(98, k) / math.comb(700, k) for k in range(1, 701)]
    assert total == pytest.approx(voted, abs=1e-9), "somebody wins whenever somebody votes"
    assert both[0][-1] == pytest.approx(1)
    with pytest.raises(ValueError, match=str(MAX_EXACT)):
        majority_at_k([1], [1.0], MAX_EXACT + 1)


def slow_winner(prefix, answers, weights, values) -> int:
    voters = [
        i
        for i in prefix
        if answers[i] >= 0 and not math.isnan(weights[i]) and not math.isnan(values[i])
    ]

    def key(answer: int):
        members = [i for i in voters if answers[i] == answer]
        total = math.fsum(weights[i] for i in members)
        return total, max(values[i] for i in members), -min(map(prefix.index, members))

    return max({answers[i] for i in voters}, key=key, default=NO_ANSWER)


@settings(deadline=None)
@given(st.data())
def test_winners(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 7))
    row = st.lists(st.integers(-1, 3), min_size=n, max_size=n)
    number = st.sampled_from([0.0, 0.05**10, 0.1, 0.25, 0.3, 0.5, 1.0, math.nan])
    numbers = st.lists(number, min_size=n, max_size=n)
    answers = [data.draw(row) for _ in range(2)]
    weights, values = ([data.draw(numbers) for _ in range(2)] for _ in range(2))
    orders = [[data.draw(st.permutations(range(n))) for _ in range(3)] for _ in range(2)]
    found = winners(*map(np.array, (orders, answers, weights, values)))
    for p, order in itertools.product(range(2), range(3)):
        for k in range(n):
            prefix = orders[p][order][: k + 1]
            expected = slow_winner(prefix, answers[p], weights[p], values[p])
            assert found[p, order, k] == expected


def test_equal_sums_tie_whatever_the_order_they_are_added_in() -> None:
    weights = np.array([[0.1, 0.2, 0.3, 0.3, 0.2, 0.1]])
    answers = np.array([[0, 0, 0, 1, 1, 1]])
    orders = np.array([list(itertools.permutations(range(6)))])
    found = winners(orders, answers, weights, np.zeros((1, 6)))[0, :, -1]
    first = answers[0][orders[0, :, 0]]
    assert (found == first).all(), "an exact tie goes to the answer that came first"


@pytest.mark.parametrize("largest", [1.0, 1e-9, 1e-200])
def test_small_weights_are_added_up_beside_large_ones_and_without(largest: float) -> None:
    weights = largest * np.array([[1.0, 0.05**10, 0.05**10, 0.05**10, 0.055**10]])
    answers = np.array([[0, 1, 1, 1, 2]])
    orders = np.array([[[4, 1, 2, 3, 0], [0, 1, 2, 3, 4]]])
    found = winners(orders, answers, weights, weights)
    assert found[0].tolist() == [[2, 2, 2, 1, 0], [0, 0, 0, 0, 0]]


def test_mean_over_seeded_orders_is_the_exact_mean() -> None:
    answers = np.array([[0, 0, 1, 1, 1, 2, -1, 0]])
    orders = seeded_orders(np.array([8]), 8, 20_000, seed=1)
    ones = np.ones((1, 8))
    found = (winners(orders, answers, ones, np.zeros((1, 8)))[0] == 1).mean(axis=0)
    exact = majority_at_k([3, 3, 1], [0, 1, 0], 8)
    assert found == pytest.approx(exact, abs=4 * math.sqrt(0.25 / 20_000))


def test_seeded_orders_keep_absent_samples_last_and_repeat() -> None:
    orders = seeded_orders(np.array([2, 4]), 4, 50, seed=3)
    assert (np.sort(orders, axis=2) == np.arange(4)).all()
    assert (orders[0, :, :2] < 2).all()
    assert (orders == seeded_orders(np.array([2, 4]), 4, 50, seed=3)).all()
    assert (orders != seeded_orders(np.array([2, 4]), 4, 50, seed=4)).any()


def test_disjoint_orders_use_every_sample_at_most_once() -> None:
    assert disjoint_orders(1, 7, 3).tolist() == [[[0, 1, 2], [3, 4, 5]]]
