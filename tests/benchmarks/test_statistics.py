"""Intervals and McNemar's test against brute force, simulation and published values."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stepsearch.benchmarks.statistics import (
    McNemar,
    Outcomes,
    PairedBootstrap,
    accuracies,
    mcnemar,
    mcnemar_of,
    wilson,
)


def outcomes(
    right: Sequence[float] | NDArray[np.float64], undecided: list[float] | None = None
) -> Outcomes:
    column = np.array(right, dtype=float)[:, None]
    gap = np.zeros_like(column) if undecided is None else np.array(undecided)[:, None]
    return Outcomes(right=column, undecided=gap)


def test_quantiles_agree_with_all_resamples() -> None:
    values = [0.0, 0.0, 1.0, 0.5]
    means = [np.mean(draw) for draw in itertools.product(values, repeat=4)]
    found = PairedBootstrap(4, num_resamples=100_000).mean(np.array(values))
    assert found.value == pytest.approx(0.375)
    assert (found.low, found.high) == pytest.approx(
        np.quantile(means, (0.025, 0.975)).tolist(), abs=0.01
    )


def test_undecided_is_neither_right_nor_wrong() -> None:
    [found] = accuracies(outcomes([1, 0, 0, 0], [0, 0, 1, 1]))
    assert (found.value, found.low, found.high) == (0.5, *wilson(0.5, 2))
    [none] = accuracies(outcomes([0, 0], [1, 1]))
    assert all(map(math.isnan, (none.value, none.low, none.high)))


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_as_published(hits: int, trials: int, low: float, high: float) -> None:
    """Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I."""
    assert wilson(hits / trials, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_all_wrong_or_all_right_is_not_certain(right: float) -> None:
    for count, reach in ((2, 0.658), (20, 0.161)):
        [found] = accuracies(outcomes([right] * count))
        assert found.value == right
        assert found.high - found.low == pytest.approx(reach, abs=1e-3)


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_single_answers_have_the_interval_of_a_proportion(right: list[bool]) -> None:
    [found] = accuracies(outcomes(right))
    assert (found.low, found.high) == pytest.approx(wilson(np.mean(right), len(right)))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_means_have_an_interval_that_is_no_wider(right: list[float]) -> None:
    [found] = accuracies(outcomes(right))
    low, high = wilson(np.mean(right), len(right))
    assert low - 1e-9 <= found.low <= found.value <= found.high <= high + 1e-9


def test_means_count_as_the_trials_that_have_their_variance() -> None:
    [found] = accuracies(outcomes([0.25, 0.75] * 5000))
    assert (found.low, found.high) == pytest.approx(wilson(0.5, 40_000), abs=1e-5)


def test_nearly_all_right_is_no_surer_than_all_right() -> None:
    [nearly] = accuracies(outcomes([1.0] * 59 + [15 / 16]))
    [whole] = accuracies(outcomes([1.0] * 60))
    assert nearly.low == pytest.approx(whole.low, abs=0.01)


RARE = {
    "single answers": lambda rng: rng.binomial(1, rng.beta(0.1, 3.0, 30)),
    "four samples": lambda rng: rng.binomial(4, rng.beta(0.1, 3.0, 40)) / 4,
    "sixteen samples": lambda rng: rng.binomial(16, rng.beta(0.1, 3.0, 200)) / 16,
    "few hopeless problems": lambda rng: np.where(rng.random(60) < 1 - 0.1 / 3.1, 0.0, 1 - 1e-4),
}


@pytest.mark.parametrize("name", RARE)
def test_rare_successes_are_covered_too(name: str) -> None:
    """Percentiles of a bootstrap cover the truth in 63, 82, 94 and 86 of 100 trials."""
    rng = np.random.default_rng(3)
    found = [accuracies(outcomes(RARE[name](rng)))[0] for _ in range(2000)]
    covered = np.mean([e.low <= 0.1 / 3.1 <= e.high for e in found])
    assert covered > 0.925


def test_difference_is_paired() -> None:
    rng = np.random.default_rng(0)
    a = rng.random(200) < 0.5
    b = a.copy()
    b[:3] = ~b[:3]
    bootstrap = PairedBootstrap(200)
    [difference] = bootstrap.difference(outcomes(a.tolist()), outcomes(b.tolist()))
    [alone] = accuracies(outcomes(a.tolist()))
    assert difference.high - difference.low < (alone.high - alone.low) / 3
    [same] = bootstrap.difference(outcomes(a.tolist()), outcomes(a.tolist()))
    assert (same.value, same.low, same.high) == (0, 0, 0)


@pytest.mark.parametrize(("count", "undecided"), [(12, 9), (30, 20), (3, 2)])
def test_resamples_without_a_decided_problem_are_left_out(count: int, undecided: int) -> None:
    """What is left are the resamples of the decided problems, by how many of them are drawn."""
    decided = count - undecided
    gap = [1.0] * undecided + [0.0] * decided
    a = outcomes([0.0] * undecided + [1.0] * decided, gap)
    b = outcomes([0.0] * undecided + [1.0] + [0.0] * (decided - 1), gap)
    [found] = PairedBootstrap(count).difference(a, b)
    assert found.value == pytest.approx((decided - 1) / decided)
    rng = np.random.default_rng(1)
    drawn = rng.binomial(count, decided / count, 50_000)
    lost = 1 - rng.binomial(drawn, 1 / decided)[drawn > 0] / drawn[drawn > 0]
    expected = np.quantile(lost, (0.025, 0.975))
    assert (found.low, found.high) == pytest.approx(expected.tolist(), abs=0.05)


def test_nothing_decided_has_no_interval() -> None:
    [found] = PairedBootstrap(2).difference(*[outcomes([0.0, 0.0], [1.0, 1.0])] * 2)
    assert all(map(math.isnan, (found.value, found.low, found.high)))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    truth_a, truth_b, problems, trials = 0.45, 0.3, 120, 250
    covered = np.zeros(2)
    for trial in range(trials):
        shared = rng.random(problems)
        a, b = shared < truth_a, (shared < truth_b) ^ (rng.random(problems) < 0.1)
        bootstrap = PairedBootstrap(problems, num_resamples=1000, seed=trial)
        truths = (truth_a, truth_a - (truth_b * 0.9 + (1 - truth_b) * 0.1))
        x, y = outcomes(a.tolist()), outcomes(b.tolist())
        estimates = (*accuracies(x), *bootstrap.difference(x, y))
        covered += [e.low <= truth <= e.high for e, truth in zip(estimates, truths, strict=True)]
    noise = 3 * math.sqrt(0.95 * 0.05 / trials)
    assert covered / trials == pytest.approx([0.95, 0.95], abs=noise + 0.01)


@pytest.mark.parametrize("n", range(7))
def test_mcnemar_against_all_coin_flips(n: int) -> None:
    flips = [sum(f) for f in itertools.product((0, 1), repeat=n)]
    for only_a in range(n + 1):
        extreme = min(only_a, n - only_a)
        expected = np.mean([s <= extreme or s >= n - extreme for s in flips])
        a = np.array([True] * only_a + [False] * (n - only_a) + [True, False])
        b = np.array([False] * only_a + [True] * (n - only_a) + [True, False])
        found = mcnemar(a, b)
        assert (found.only_a, found.only_b) == (only_a, n - only_a)
        assert found.p == pytest.approx(expected)


def test_mcnemar_of_a_worked_example() -> None:
    a = np.array([True] * 9 + [False] * 1)
    assert mcnemar(a, ~a).p == pytest.approx(22 / 1024)


def test_mcnemar_leaves_out_what_is_undecided() -> None:
    a = outcomes([1, 0, 0, 1, 1], [0, 0, 1, 0, 0])
    b = outcomes([0, 1, 1, 1, 0], [0, 0, 0, 0, 1])
    assert mcnemar_of(a, b) == McNemar(only_a=1, only_b=1, p=1.0)


def test_nothing_to_resample_is_refused() -> None:
    with pytest.raises(ValueError, match="num_problems=0"):
        PairedBootstrap(0)
