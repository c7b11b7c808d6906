"""Medians, ranges and the order of rounds of equal work."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepsearch.benchmarks.perf.gpu_rounds import (
    Run,
    check_tokens,
    in_rounds,
    middle_run,
    middle_seconds,
    normalised,
    tax_of,
)


def runs(*seconds: float, tokens: Sequence[int] = ()) -> list[Run]:
    counts = tokens or [1000] * len(seconds)
    return [
        Run(seconds=s, tokens=t, passes=0, rows=0) for s, t in zip(seconds, counts, strict=True)
    ]


def test_seconds_are_those_of_the_first_rounds_tokens() -> None:
    assert normalised(runs(2.0, 2.2, 1.9, tokens=[1000, 1100, 950])) == pytest.approx([2, 2, 2])


@pytest.mark.parametrize(
    ("seconds", "expected", "chosen"),
    [([3.0], 3.0, 3.0), ([3.0, 1.0], 2.0, 1.0), ([3.0, 1.0, 2.5], 2.5, 2.5)],
)
def test_the_middle(seconds: list[float], expected: float, chosen: float) -> None:
    assert middle_seconds(runs(*seconds)) == expected
    assert middle_run(runs(*seconds)).seconds == chosen


def test_the_middle_round_is_chosen_by_seconds_a_token() -> None:
    found = runs(2.0, 2.06, 2.01, tokens=[1000, 1040, 990])
    assert middle_run(found).seconds == 2.0


def test_the_tax_is_of_medians_and_ranges_over_the_rounds_furthest_apart() -> None:
    tax = tax_of(runs(12.0, 15.0, 13.0), runs(10.0, 12.0, 11.0))
    assert tax == pytest.approx((13 / 11, 12 / 12, 15 / 10))
    assert str(tax) == "1.18 [1.00, 1.50]"


def test_rounds_that_wrote_other_numbers_of_tokens_are_no_rounds() -> None:
    check_tokens("beam", runs(1, 1, tokens=[1000, 951]))
    with pytest.raises(RuntimeError, match=r"beam: rounds wrote \[1000, 950\] tokens"):
        check_tokens("beam", runs(1, 1, tokens=[1000, 950]))


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
