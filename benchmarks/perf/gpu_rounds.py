"""Rounds of equal work: in which order they run, their medians, and the ratio of two kinds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeVar

MOST_APART = 0.05
"""Share by which the tokens of rounds of one search may differ from the first round's."""

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
    """Ratio of two medians, and of the rounds that are furthest apart in either direction."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} [{self.low:.2f}, {self.high:.2f}]"


def normalised(runs: Sequence[Run]) -> list[float]:
    """Seconds of every round, had it written as many tokens as the first."""
    return [run.seconds * runs[0].tokens / run.tokens for run in runs]


def check_tokens(name: str, runs: Sequence[Run]) -> None:
    """Whether rounds wrote so nearly the same number of tokens that one raw run fits them all.

    Raises:
        RuntimeError: they differ by 5% or more.
    """
    counts = [run.tokens for run in runs]
    if any(abs(count - counts[0]) >= MOST_APART * counts[0] for count in counts):
        raise RuntimeError(f"{name}: rounds wrote {counts} tokens, too different to compare")


def middle_seconds(runs: Sequence[Run]) -> float:
    """Median of the normalised seconds."""
    return median(normalised(runs))


def middle_run(runs: Sequence[Run]) -> Run:
    """The round with the median seconds; of two in the middle the faster one."""
    return sorted(runs, key=lambda run: run.seconds / run.tokens)[(len(runs) - 1) // 2]


def tax_of(runs: Sequence[Run], raw: Sequence[Run]) -> Tax:
    """How many times as long the runs take as the raw ones."""
    ours, theirs = normalised(runs), normalised(raw)
    return Tax(median(ours) / median(theirs), min(ours) / max(theirs), max(ours) / min(theirs))


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
