"""How sure a figure is: Wilson intervals, a paired bootstrap over problems, McNemar's test."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Z95 = 1.959963984540054
"""Standard deviations that hold 95% of a normal distribution."""
_UNSEEN = Z95 * Z95 / 2
"""Wilson's interval is centred as if so many trials more had succeeded, and so many failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its confidence interval.

    Attributes:
        value: the estimate from the problems as they are; NaN when no problem was decided.
        low, high: the 95% interval.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What a method achieved on every problem; columns are settings, such as numbers of samples.

    Attributes:
        right: probability of a right answer, shape (problems, columns).
        undecided: probability of an answer that could not be graded, same shape. It is neither
            right nor wrong: accuracy is right / (1 - undecided), summed over problems.
    """

    right: Floats
    undecided: Floats

    def accuracy(self) -> Floats:
        """Accuracy of each column, shape (columns,)."""
        return _ratio(self.right.sum(axis=0), (1 - self.undecided).sum(axis=0))


def wilson(share: float, trials: float) -> tuple[float, float]:
    """The score interval of a proportion (Wilson 1927), 95%.

    It has a width where nothing or everything succeeded, and keeps its promise there and for few
    trials, which percentiles of a bootstrap do not.

    Args:
        share: of the trials that succeeded.
        trials: how many there were; a fraction for an effective number.
    """
    square = Z95 * Z95 / trials
    middle = (share + square / 2) / (1 + square)
    reach = sqrt(share * (1 - share) * square + square * square / 4) / (1 + square)
    return min(share, middle - reach), max(share, middle + reach)


def accuracies(outcomes: Outcomes) -> list[Estimate]:
    """The accuracy of each column with its Wilson interval over problems.

    Outcomes that are means over subsets or seeds vary less than single answers: the interval takes
    as many trials as would have their variance (Franco et al. 2019, "Comparative study of
    confidence intervals for proportions in complex sample surveys"). That is the number of decided
    problems where every outcome is 0 or 1. The variance is taken with `_UNSEEN` problems solved
    and as many failed in addition (Agresti and Coull 1998): few problems that are all alike do not
    show that all problems are.
    """
    decided = 1 - outcomes.undecided
    trials = decided.sum(axis=0)
    share = (outcomes.right.sum(axis=0) + _UNSEEN) / (trials + 2 * _UNSEEN)
    squares = ((outcomes.right - share * decided) ** 2).sum(axis=0)
    squares += _UNSEEN * (share**2 + (1 - share) ** 2)
    effective = trials * share * (1 - share) * (trials + 2 * _UNSEEN) / squares
    found = []
    for value, n in zip(outcomes.accuracy().tolist(), effective.tolist(), strict=True):
        low, high = wilson(value, n) if n > 0 else (np.nan, np.nan)
        found.append(Estimate(value=value, low=low, high=high))
    return found


class PairedBootstrap:
    """Resamples problems; the same resamples serve every method, so that differences are paired.

    Efron and Tibshirani 1993, percentile intervals. What is resampled is the problem: samples of
    one problem are not independent. Two methods that agree on every problem differ by 0 in every
    resample: an interval without width then says so, not that they agree everywhere. A resample in
    which one of the methods has no decided problem has no accuracy and is left out, which matters
    where few problems are decided.

    Args:
        num_problems: how many problems there are.
        num_resamples: how many times they are drawn.
        seed: of the draws.
        confidence: of the intervals.
    """

    def __init__(
        self,
        num_problems: int,
        *,
        num_resamples: int = 10_000,
        seed: int = 0,
        confidence: float = 0.95,
    ) -> None:
        if num_problems < 1:
            raise ValueError(f"num_problems={num_problems} must be at least 1")
        rng = np.random.default_rng(seed)
        share = np.full(num_problems, 1 / num_problems)
        self._counts = rng.multinomial(num_problems, share, size=num_resamples).astype(np.float64)
        self._quantiles = ((1 - confidence) / 2, (1 + confidence) / 2)

    def difference(self, a: Outcomes, b: Outcomes) -> list[Estimate]:
        """Accuracy of `a` minus that of `b`, column by column."""
        resampled = self._resampled(a) - self._resampled(b)
        return self._estimates(a.accuracy() - b.accuracy(), resampled)

    def mean(self, values: Floats) -> Estimate:
        """The mean of one number per problem."""
        [estimate] = self._estimates(
            values.mean(keepdims=True), self._counts @ values[:, None] / len(values)
        )
        return estimate

    def _resampled(self, outcomes: Outcomes) -> Floats:
        decided = self._counts @ (1 - outcomes.undecided)
        return _ratio(self._counts @ outcomes.right, decided)

    def _estimates(self, values: Floats, resampled: Floats) -> list[Estimate]:
        found = []
        for value, column in zip(values.tolist(), resampled.T, strict=True):
            known = column[~np.isnan(column)]
            low, high = np.quantile(known, self._quantiles) if known.size else (np.nan, np.nan)
            found.append(Estimate(value=value, low=float(low), high=float(high)))
        return found


def _ratio(top: Floats, bottom: Floats) -> Floats:
    result: Floats = np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class McNemar:
    """An exact test whether two methods are right equally often on the same problems.

    Attributes:
        only_a: problems that only the first method solved.
        only_b: problems that only the second one solved.
        p: two-sided p-value, binomial, without correction for many comparisons.
    """

    only_a: int
    only_b: int
    p: float


def mcnemar(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> McNemar:
    """McNemar 1947 in its exact form: of the problems on which they differ, half each by chance."""
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    n = only_a + only_b
    tail = sum(comb(n, i) for i in range(min(only_a, only_b) + 1))
    return McNemar(only_a=only_a, only_b=only_b, p=min(1.0, 2 * tail / 2**n))


def mcnemar_of(a: Outcomes, b: Outcomes) -> McNemar:
    """The test with two methods of one verdict per problem; undecided problems are left out."""
    decided = (a.undecided[:, 0] == 0) & (b.undecided[:, 0] == 0)
    return mcnemar(a.right[decided, 0] == 1, b.right[decided, 0] == 1)
