"""Rounds of equal work: in which order they run, and the ratio of two kinds of runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One timed round.

    Attributes:
        seconds: wall time.
        tokens: that were asked for and written.
        passes: forward passes of the engine.
        rows: of all passes together.
        host: who was busy meanwhile.
    """

    seconds: float
    tokens: int
    passes: int
    rows: int
    host: str = ""

    @property
    def mean_rows(self) -> float:
        """Rows of a pass."""
        return self.rows / max(self.passes, 1)

    def line(self) -> str:
        """The run as text."""
        return (
            f"{self.tokens} tokens in {self.seconds:.2f} s,"
            f" {self.passes} passes of {self.mean_rows:.0f} rows"
        )


class Tax(NamedTuple):
    """Median, smallest and largest of the rounds' ratios."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratios(runs: Sequence[Run], raw: Sequence[Run]) -> list[float]:
    """How many times as long each run takes as the raw one of the same round and tokens."""
    return [ours.seconds / theirs.seconds for ours, theirs in zip(runs, raw, strict=True)]


def tax_of(runs: Sequence[Run], raw: Sequence[Run]) -> Tax:
    """Median and range of the ratios."""
    found = ratios(runs, raw)
    return Tax(median(found), min(found), max(found))


def middle_round(runs: Sequence[Run], raw: Sequence[Run]) -> int:
    """The round with the median ratio; of two in the middle the one with the smaller."""
    found = ratios(runs, raw)
    return sorted(range(len(found)), key=found.__getitem__)[(len(found) - 1) // 2]


def middle_seconds(runs: Sequence[Run]) -> float:
    """Median of the seconds."""
    return median(run.seconds for run in runs)


def in_rounds(
    num: int,
    works: Sequence[T],
    until: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[T]:
    """Every work once a round, so that a drift of the host meets all of them.

    The caller does a work before it asks for the next one. After the first round, one that would
    end later than `until`, judged by how long it took before, is left out.
    """
    took: dict[int, float] = {}
    for _ in range(num):
        for place, work in enumerate(works):
            start = clock()
            if place in took and start + took[place] > until:
                continue
            yield work
            took[place] = clock() - start
