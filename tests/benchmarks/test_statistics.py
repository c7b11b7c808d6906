"""Bootstrap and McNemar against brute force, simulation and published values."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from stepsearch.benchmarks.statistics import Outcomes, PairedBootstrap, mcnemar


def outcomes(right: Sequence[float], undecided: list[float] | None = None) -> Outcomes:
    column = np.array(right)[:, None]
    gap = np.zeros_like(column) if undecided is None else np.array(undecided)[:, None]
    return Outcomes(right=column, undecided=gap)


def test_quantiles_agree_with_all_resamples() -> None:
    values = [0.0, 0.0, 1.0, 0.5]
    means = [np.mean(draw) for draw in itertools.product(values, repeat=4)]
    [found] = PairedBootstrap(4, num_resamples=100_000).accuracy(outcomes(values))
    assert found.value == pytest.approx(0.375)
    assert (found.low, found.high) == pytest.approx(
        np.quantile(means, (0.025, 0.975)).tolist(), abs=0.01
    )


def test_undecided_is_neither_right_nor_wrong() -> None:
    [found] = PairedBootstrap(4).accuracy(outcomes([1, 0, 0, 0], [0, 0, 1, 1]))
    assert found.value == 0.5
    [none] = PairedBootstrap(2).accuracy(outcomes([0, 0], [1, 1]))
    assert math.isnan(none.value)


def test_difference_is_paired() -> None:
    rng = np.random.default_rng(0)
    a = rng.random(200) < 0.5
    b = a.copy()
    b[:3] = ~b[:3]
    bootstrap = PairedBootstrap(200)
    [difference] = bootstrap.difference(outcomes(a.tolist()), outcomes(b.tolist()))
    [alone] = bootstrap.accuracy(outcomes(a.tolist()))
    assert difference.high - difference.low < (alone.high - alone.low) / 3
    [same] = bootstrap.difference(outcomes(a.tolist()), outcomes(a.tolist()))
    assert (same.value, same.low, same.high) == (0, 0, 0)


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
        estimates = (*bootstrap.accuracy(x), *bootstrap.difference(x, y))
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


def test_nothing_to_resample_is_refused() -> None:
    with pytest.raises(ValueError, match="num_problems=0"):
        PairedBootstrap(0)
