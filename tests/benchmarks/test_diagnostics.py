"""What verifiers are worth, against counting by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsearch.benchmarks.diagnostics import (
    auroc,
    auroc_within,
    calibration,
    calibration_error,
    correlation_within,
    coverage,
    rank_correlation,
)

scored = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.booleans(), st.integers(0, 2)),
    min_size=1,
    max_size=12,
)


def pairs(samples, same_problem: bool) -> float:
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for (a, x, p), (b, y, q) in itertools.product(samples, repeat=2)
        if x and not y and (p == q or not same_problem)
    ]
    return float(np.mean(wins)) if wins else math.nan


@settings(deadline=None)
@given(scored)
def test_auroc_counts_pairs(samples) -> None:
    scores, right, problem = map(np.array, zip(*samples, strict=True))
    assert auroc(scores, right) == pytest.approx(pairs(samples, False), nan_ok=True)
    within = auroc_within(scores, right, problem)
    assert within == pytest.approx(pairs(samples, True), nan_ok=True)


def test_auroc_within_ignores_which_problems_are_easy() -> None:
    scores = np.array([0.9, 0.9, 0.9, 0.1, 0.1, 0.1])
    right = np.array([True, True, False, True, False, False])
    problem = np.array([0, 0, 0, 1, 1, 1])
    assert auroc(scores, right) > 0.6
    assert auroc_within(scores, right, problem) == 0.5


def test_calibration() -> None:
    scores = np.array([0.0, 0.05, 0.95, 1.0])
    bins = calibration(scores, np.array([False, True, True, True]))
    assert [(b.low, b.count, b.accuracy) for b in bins] == [(0, 2, 0.5), (pytest.approx(0.9), 2, 1)]
    assert calibration_error(bins) == pytest.approx((2 * 0.475 + 2 * 0.025) / 4)
    exact = np.linspace(0, 1, 20_001)
    right = np.random.default_rng(0).random(len(exact)) < exact
    assert calibration_error(calibration(exact, right)) < 0.02


def test_rank_correlation() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(a, a**3) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)
    assert math.isnan(rank_correlation(a, np.ones(4)))
    problem = np.array([0, 0, 1, 1])
    assert correlation_within(a, np.array([1.0, 2.0, 2.0, 1.0]), problem) == pytest.approx(0)
    assert math.isnan(correlation_within(a, np.ones(4), problem))


@settings(deadline=None)
@given(scored)
def test_coverage_is_accuracy_above_each_threshold(samples) -> None:
    scores, right, _ = map(np.array, zip(*samples, strict=True))
    shares, accuracy = coverage(scores, right)
    expected = [
        (np.mean(scores >= t), np.mean(right[scores >= t])) for t in sorted(set(scores))[::-1]
    ]
    assert list(zip(shares, accuracy, strict=True)) == [pytest.approx(pair) for pair in expected]
