"""The simulation of many GPUs keeps to what can be computed."""

import pytest

from stepsearch.benchmarks.perf.scale import SAMPLES, STEPS, simulate


def test_shares_are_shares_and_more_prm_frees_the_policy() -> None:
    few, many = simulate(8, 1, 16, problems_per_gpu=4), simulate(8, 3, 16, problems_per_gpu=4)
    for found in (few, many):
        assert 0 < found.policy_busy < 1.05, "its numerator is an expectation"
        assert 0 < found.prm_busy <= 1
    assert many.policy_busy > few.policy_busy


def test_a_scorer_that_is_always_busy_bounds_the_rate() -> None:
    found = simulate(8, 1, 64, problems_per_gpu=16)
    bound = 64 / (0.02 + 0.004 * 64) / (SAMPLES * STEPS)
    assert found.problems_per_second <= bound
    assert found.problems_per_second == pytest.approx(bound, rel=0.25)
