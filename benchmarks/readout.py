"""Reading out the same samples by many selections, at every number of samples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepsearch.benchmarks.grading import Grader
from stepsearch.benchmarks.metrics import MAX_EXACT, best_of_k, majority_at_k, pass_at_k
from stepsearch.benchmarks.samples import SampledProblem, ScoreSource
from stepsearch.benchmarks.scorers import Scorer
from stepsearch.benchmarks.statistics import Outcomes
from stepsearch.benchmarks.votes import (
    NO_ANSWER,
    disjoint_orders,
    seeded_orders,
    winners,
)
from stepsearch.search.canonical import normalize
from stepsearch.search.task import MathTask, Task

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_INTEGER = re.compile(r"-?\d{1,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballots:
    """The answers of all samples, grouped and graded.

    Attributes:
        counts: samples of each problem, shape (problems,); none at all are one without an answer.
        answers: the group of each sample's answer, `NO_ANSWER` for none; shape (problems, width).
        right: whether a group is right: 1, 0, or NaN where it could not be decided; shape
            (problems, groups), with a last column of zeros for `NO_ANSWER`.
    """

    counts: Ints
    answers: Ints
    right: Floats

    @property
    def width(self) -> int:
        """Samples of the largest problem."""
        return int(self.answers.shape[1])


def collect(problems: Sequence[SampledProblem], grader: Grader) -> Ballots:
    """Group and grade the answers of every problem."""
    grouped = [group_answers([s.answer for s in p.samples], grader.task) for p in problems]
    counts = np.array([max(1, len(p.samples)) for p in problems])
    answers = np.full((len(problems), int(counts.max())), NO_ANSWER)
    right = np.zeros((len(problems), max(len(first) for _, first in grouped) + 1))
    for row, (problem, (groups, firsts)) in enumerate(zip(problems, grouped, strict=True)):
        answers[row, : len(groups)] = groups
        for column, first in enumerate(firsts):
            verdict = grader.right(first, problem.problem.answer or "")
            right[row, column] = np.nan if verdict is None else verdict
    return Ballots(counts=counts, answers=answers, right=right)


def group_answers(answers: Sequence[str | None], task: Task) -> tuple[list[int], list[str]]:
    """The group of every answer, and the first answer of every group.

    An answer joins the first group whose first member it equals; "could not be decided" is not
    equal.
    """
    firsts: list[str] = []
    known: dict[str, int] = {}
    for answer in answers:
        if answer is not None and answer not in known:
            same = (i for i, first in enumerate(firsts) if _equal(first, answer, task))
            known[answer] = next(same, len(firsts))
            if known[answer] == len(firsts):
                firsts.append(answer)
    return [NO_ANSWER if answer is None else known[answer] for answer in answers], firsts


def _equal(a: str, b: str, task: Task) -> bool:
    if isinstance(task, MathTask):  # two integers, by far the most frequent pair, need no grader
        x, y = normalize(a), normalize(b)
        if _INTEGER.fullmatch(x) and _INTEGER.fullmatch(y):
            return int(x) == int(y)
    return task.equal(a, b) is True


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to read out the samples.

    Attributes:
        selection: `pass`, `majority`, `weighted`, `best` or `ties` (a majority whose ties the
            scorer breaks).
        scorer: the scorer's label; empty for `pass` and `majority`.
        is_exact: whether the mean over subsets is exact, not taken over seeded orders.
        outcomes: one column per number of samples, 1 to the largest.
        in_order: outcome with the first samples as they stand, shape of the outcomes: 1, 0, or NaN
            where it could not be graded.
    """

    selection: str
    scorer: str
    is_exact: bool
    outcomes: Outcomes
    in_order: Floats

    @property
    def label(self) -> str:
        """Names the row in tables."""
        if self.selection == "ties":
            return f"majority, ties by {self.scorer}"
        return f"{self.selection} {self.scorer}".strip()


class Reader:
    """Reads out ballots.

    Args:
        ballots: the answers.
        num_orders: seeded orders for what has no exact mean.
        seed: of the orders.
        is_disjoint: take the mean over the disjoint groups of N samples as they stand instead of
            over all subsets.
    """

    def __init__(
        self, ballots: Ballots, *, num_orders: int = 256, seed: int = 0, is_disjoint: bool = False
    ) -> None:
        self.ballots = ballots
        width = ballots.width
        shape = ballots.answers.shape
        self._none = np.zeros(shape)
        self._is_disjoint = is_disjoint
        self._is_exact = not is_disjoint and width <= MAX_EXACT
        self._orders = (
            [disjoint_orders(shape[0], width, size) for size in range(1, width + 1)]
            if is_disjoint
            else [seeded_orders(ballots.counts, width, num_orders, seed)]
        )

    def passed(self) -> Row:
        """Whether any sample is right: what a perfect selection would reach."""
        right = np.nan_to_num(np.take_along_axis(self.ballots.right, self.ballots.answers, axis=1))
        if not self._is_exact:
            return self._row("pass", "", self._none, right)
        means = [
            pass_at_k(n, int(r.sum()))
            for n, r in zip(self.ballots.counts.tolist(), right, strict=True)
        ]
        exact = self._outcomes(means, [np.zeros_like(mean) for mean in means])
        return self._row("pass", "", self._none, right, exact)

    def majority(self) -> Row:
        """The most frequent answer; ties are shared, or go to the earliest in disjoint groups."""
        if not self._is_exact:
            return self._row("majority", "", self._none + 1, self._none)
        means: list[list[Floats]] = [[], []]
        for problem, n in enumerate(self.ballots.counts.tolist()):
            answers = self.ballots.answers[problem]
            sizes = np.bincount(answers[answers >= 0]).tolist()
            for mean, hits in zip(means, self._hits(problem, np.arange(len(sizes))), strict=True):
                mean.append(majority_at_k(sizes, hits, n))
        return self._row("majority", "", self._none + 1, self._none, self._outcomes(*means))

    def best(self, label: str, values: Floats) -> Row:
        """The answer of the sample with the highest value; the earliest wins a tie."""
        if not self._is_exact:
            return self._row("best", label, self._none, values)
        means: list[list[Floats]] = [[], []]
        may = (self.ballots.answers != NO_ANSWER) & ~np.isnan(values)
        for problem, n in enumerate(self.ballots.counts.tolist()):
            order = np.argsort(-values[problem], kind="stable")
            ranked = self.ballots.answers[problem][order[may[problem][order]]]
            for mean, hits in zip(means, self._hits(problem, ranked), strict=True):
                mean.append(best_of_k(hits, n))
        return self._row("best", label, self._none, values, self._outcomes(*means))

    def weighted(self, label: str, values: Floats) -> Row:
        """The answer with the largest sum of values."""
        return self._row("weighted", label, values, values)

    def ties(self, label: str, values: Floats) -> Row:
        """The most frequent answer; the better best member wins a tie.

        A sample without a score votes, but wins no tie.
        """
        lowest = np.where(np.isnan(values), -np.finfo(float).max, values)
        return self._row("ties", label, self._none + 1, lowest)

    def _row(
        self,
        selection: str,
        label: str,
        weights: Floats,
        values: Floats,
        exact: Outcomes | None = None,
    ) -> Row:
        whole = np.arange(self.ballots.width)[None, None, :].repeat(len(weights), axis=0)
        return Row(
            selection=selection,
            scorer=label,
            is_exact=exact is not None,
            outcomes=exact or self._sampled(weights, values),
            in_order=self._verdicts(whole, weights, values)[:, 0],
        )

    def _sampled(self, weights: Floats, values: Floats) -> Outcomes:
        """Means over the orders."""
        means = [_mean(self._verdicts(orders, weights, values)) for orders in self._orders]
        if self._is_disjoint:  # orders of every length, of which the end is wanted
            means = [np.concatenate([mean[:, :, -1:] for mean in means], axis=2)]
        [(right, undecided)] = means
        if not self._is_disjoint:
            right[:, 0], undecided[:, 0] = self._one_sample(weights, values)
        return Outcomes(right=right, undecided=undecided)

    def _one_sample(self, weights: Floats, values: Floats) -> Floats:
        """The means with one sample, which are exact and alike for all who decide alike."""
        places = np.arange(self.ballots.width)[None, :, None].repeat(len(weights), axis=0)
        verdicts = self._verdicts(places, weights, values)[:, :, 0]
        is_there = places[:, :, 0] < self.ballots.counts[:, None]
        sums = [
            (part * is_there).sum(axis=1) for part in (np.nan_to_num(verdicts), np.isnan(verdicts))
        ]
        return np.stack(sums) / self.ballots.counts

    def _verdicts(self, orders: Ints, weights: Floats, values: Floats) -> Floats:
        """Whether the winner is right, shape of `orders`."""
        won = winners(orders, self.ballots.answers, weights, values)
        flat = np.take_along_axis(self.ballots.right, won.reshape(len(won), -1), axis=1)
        return flat.reshape(won.shape)

    def _hits(self, problem: int, answers: Ints) -> tuple[list[float], list[float]]:
        """Whether each of these answers is right, and whether it could not be decided."""
        verdicts = self.ballots.right[problem][answers]
        return np.nan_to_num(verdicts).tolist(), np.isnan(verdicts).astype(np.float64).tolist()

    def _outcomes(self, right: list[Floats], undecided: list[Floats]) -> Outcomes:
        return Outcomes(right=self._padded(right), undecided=self._padded(undecided))

    def _padded(self, rows: list[Floats]) -> Floats:
        """Rows of one length; a problem with fewer samples stays at what all of them give."""
        width = self.ballots.width
        return np.stack([np.pad(r, (0, width - len(r)), mode="edge") for r in rows])


def _mean(verdicts: Floats) -> Floats:
    """Chance of a right and of an undecided answer over the orders, shape (2, problems, k)."""
    return np.stack([np.nan_to_num(verdicts).mean(axis=1), np.isnan(verdicts).mean(axis=1)])


def values_of(
    problems: Sequence[SampledProblem], scorer: Scorer, sources: Mapping[str, ScoreSource]
) -> Floats:
    """The scorer's number for every sample, NaN where there is none; shape (problems, width)."""
    values = np.full((len(problems), max(1, *(len(p.samples) for p in problems))), np.nan)
    for row, problem in enumerate(problems):
        for column, sample in enumerate(problem.samples):
            values[row, column] = scorer.value(sample, sources)
    return values
