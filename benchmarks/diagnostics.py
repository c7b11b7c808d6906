"""What a verifier's scores are worth: calibration, discrimination, length bias, abstention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Samples with similar scores."""

    low: float
    high: float
    count: int
    score: float
    accuracy: float


def calibration(scores: Floats, right: Bools, num_bins: int = 10) -> list[Bin]:
    """Mean score and accuracy in bins of equal width; empty bins are left out."""
    edges = np.linspace(0, 1, num_bins + 1)
    place = np.clip(np.digitize(scores, edges[1:-1]), 0, num_bins - 1)
    return [
        Bin(
            low=float(edges[i]),
            high=float(edges[i + 1]),
            count=int((place == i).sum()),
            score=float(scores[place == i].mean()),
            accuracy=float(right[place == i].mean()),
        )
        for i in range(num_bins)
        if (place == i).any()
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: mean distance of score and accuracy, weighted by counts."""
    total = sum(b.count for b in bins)
    return sum(b.count * abs(b.score - b.accuracy) for b in bins) / total if total else np.nan


def auroc(scores: Floats, right: Bools) -> float:
    """Chance that a right sample scores above a wrong one, ties counting half; NaN without both."""
    num_right = int(right.sum())
    num_wrong = len(right) - num_right
    if not num_right or not num_wrong:
        return float("nan")
    above = _ranks(scores)[right].sum() - num_right * (num_right + 1) / 2
    return float(above / (num_right * num_wrong))


def auroc_within(scores: Floats, right: Bools, problem: Ints) -> float:
    """The same over pairs of samples of one problem: what a selection can use.

    Pairs of different problems reward a verifier for knowing which problems are easy.
    """
    above = pairs = 0.0
    for name in np.unique(problem):
        own = problem == name
        count = float(right[own].sum() * (~right[own]).sum())
        if count:
            above += auroc(scores[own], right[own]) * count
            pairs += count
    return above / pairs if pairs else float("nan")


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's correlation; NaN when one of them is constant."""
    x, y = _ranks(a), _ranks(b)
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def correlation_within(a: Floats, b: Floats, problem: Ints) -> float:
    """Mean over problems of the rank correlation within a problem."""
    found = [rank_correlation(a[problem == p], b[problem == p]) for p in np.unique(problem)]
    known = [value for value in found if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def coverage(scores: Floats, right: Bools) -> tuple[Floats, Floats]:
    """Answering only above a threshold: share of problems answered, and accuracy on those.

    Problems with equal scores are answered together.
    """
    order = np.argsort(-scores, kind="stable")
    answered = np.arange(1, len(scores) + 1)
    accuracy = np.cumsum(right[order]) / answered
    last = np.append(np.diff(scores[order]) != 0, True)
    return answered[last] / len(scores), accuracy[last]


def _ranks(values: Floats) -> Floats:
    """Ranks from 1, equal values sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = (ends - (counts - 1) / 2)[inverse]
    return ranks
