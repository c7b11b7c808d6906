"""Methods against votes over independent samples that cost as much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsearch.benchmarks.readout import Row
from stepsearch.benchmarks.run_data import Floats, Method
from stepsearch.benchmarks.statistics import Estimate, Outcomes, PairedBootstrap, accuracies

AXES = ("flops", "policy_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A run of `best_of_n`, read out at every number of samples.

    Attributes:
        method: the run; where it has several seeds, its first one is read out.
        ids: its problems, in the order of the rows' outcomes.
        rows: readouts; column k - 1 is for k samples.
        num_samples: how many samples each problem had.
    """

    method: Method
    ids: Sequence[str]
    rows: Sequence[Row]
    num_samples: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A method and a readout of the baseline at the same cost.

    Attributes:
        method: the method.
        readout: how the baseline is read out.
        axis: what is equal: `flops`, or `policy_tokens` where FLOPs are not known.
        cost: mean cost per problem.
        samples: how many samples of the baseline cost as much; a fraction mixes two numbers.
        accuracy: of the method.
        baseline: of the baseline; None when it has too few samples to cost as much.
        difference: method minus baseline, paired; None likewise.
    """

    method: str
    readout: str
    axis: str
    cost: float
    samples: float
    accuracy: Estimate
    baseline: Estimate | None
    difference: Estimate | None


def compare(method: Method, baseline: Baseline) -> list[Comparison]:
    """A method against every readout of a baseline, on the problems that both solved.

    There is nothing to compare where there are none.
    """
    shared = [name for name in method.ids() if name in set(baseline.ids)]
    if not shared:
        return []
    mine = take(method.outcomes(), method.ids(), shared)
    bootstrap = PairedBootstrap(len(shared))
    axis, cost, each = _costs(method, baseline, shared)
    samples = cost / each
    found = []
    for row in baseline.rows:
        theirs = _at(take(row.outcomes, baseline.ids, shared), samples)
        found.append(
            Comparison(
                method=method.label,
                readout=row.label,
                axis=axis,
                cost=cost,
                samples=samples,
                accuracy=accuracies(mine)[0],
                baseline=None if theirs is None else accuracies(theirs)[0],
                difference=None if theirs is None else bootstrap.difference(mine, theirs)[0],
            )
        )
    return found


def _costs(method: Method, baseline: Baseline, ids: Sequence[str]) -> tuple[str, float, float]:
    """The axis, the method's mean cost on these problems, and that of a sample of the baseline."""
    one = replace(baseline.method, runs=(baseline.method.first,))
    place = {name: i for i, name in enumerate(baseline.ids)}
    num_samples = sum(baseline.num_samples[place[name]] for name in ids)
    for axis in AXES:
        mine, theirs = method.cost(axis, ids), one.cost(axis, ids)
        if mine is not None and theirs is not None and theirs.mean() > 0:
            return axis, float(mine.mean()), float(theirs.sum()) / num_samples
    raise ValueError("policy tokens are always known")


def take(outcomes: Outcomes, ids: Sequence[str], wanted: Sequence[str]) -> Outcomes:
    """The outcomes of some problems, in their order."""
    place: Mapping[str, int] = {name: i for i, name in enumerate(ids)}
    rows = [place[name] for name in wanted]
    return Outcomes(right=outcomes.right[rows], undecided=outcomes.undecided[rows])


def _at(outcomes: Outcomes, samples: float) -> Outcomes | None:
    """Outcomes at a number of samples, between two whole ones mixed; None beyond the largest.

    Less than one sample cannot be bought: it counts as one.
    """
    largest = outcomes.right.shape[1]
    samples = max(samples, 1.0)
    if samples > largest * 1.005:  # rounding of the mean cost
        return None
    low = min(int(np.floor(samples)), largest)
    high = min(low + 1, largest)
    share = min(samples, largest) - low

    def mix(values: Floats) -> Floats:
        mixed: Floats = (1 - share) * values[:, low - 1] + share * values[:, high - 1]
        return mixed[:, None]

    return Outcomes(right=mix(outcomes.right), undecided=mix(outcomes.undecided))
