"""Medians, ranges and the order of rounds of equal work."""

from __future__ import annotations

import pytest

from stepsearch.benchmarks.perf.gpu_rounds import (
    Run,
    in_rounds,
    middle_round,
    middle_seconds,
    tax_of,
)


def runs(*seconds: float) -> list[Run]:
    return [Run(seconds=s, tokens=1000, passes=0, rows=0) for s in seconds]


@pytest.mark.parametrize(
    ("seconds", "expected", "chosen"),
    [([3.0], 3.0, 0), ([3.0, 1.0], 2.0, 1), ([3.0, 1.0, 2.5], 2.5, 2)],
)
def test_the_middle(seconds: list[float], expected: float, chosen: int) -> None:
    assert middle_seconds(runs(*seconds)) == expected
    assert middle_round(runs(*seconds), runs(*[1.0] * len(seconds))) == chosen


def test_a_ratio_is_of_two_runs_of_one_round() -> None:
    """A machine that is slower in one round changes no ratio."""
    tax = tax_of(runs(12.0, 24.0, 13.0), runs(10.0, 20.0, 10.0))
    assert tax == pytest.approx((1.2, 1.2, 1.3))
    assert str(tax) == "1.20 [1.20, 1.30]"
    assert middle_round(runs(12.0, 26.0, 13.0), runs(8.0, 20.0, 13.0)) == 1


def test_a_round_without_its_raw_run_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        tax_of(runs(1.0, 1.0), runs(1.0))


def test_every_work_is_done_before_one_is_done_again() -> None:
    assert list(in_rounds(2, "ab", until=float("inf"))) == ["a", "b", "a", "b"]


def test_after_the_first_round_what_would_end_too_late_is_left_out() -> None:
    seconds, done = {"long": 10.0, "short": 1.0}, list[str]()

    def clock() -> float:
        return sum(seconds[work] for work in done)

    for work in in_rounds(3, list(seconds), until=20.0, clock=clock):
        done.append(work)
    assert done == ["long", "short", "short", "short"]
    assert list(in_rounds(2, "ab", until=12.0, clock=clock)) == ["a", "b"]
