"""How well scores tell right from wrong: AUROC by depth, and best-of-N on held-out problems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepsearch.verifiers.training.examples import Labelled

_MAX_DEPTH = 8


def auroc(scores: Sequence[float], labels: Sequence[float]) -> float | None:
    """Chance that a right one scores above a wrong one, ties counting half; None without both.

    Labels from 0.5 on are right. By ranks (Mann and Whitney 1947).
    """
    x, y = np.asarray(scores, dtype=float), np.asarray(labels, dtype=float) >= 0.5
    right, wrong = int(y.sum()), int((~y).sum())
    if not right or not wrong:
        return None
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[y].sum() - right * (right + 1) / 2) / (right * wrong))


def step_measures(
    scores: Sequence[Sequence[float]], labels: Sequence[Sequence[float | None]]
) -> dict[str, Any]:
    """AUROC over all labelled steps and over those of every depth; the last depth is open."""
    by_depth: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for values, marks in zip(scores, labels, strict=True):
        for depth, (value, mark) in enumerate(zip(values, marks, strict=True), start=1):
            if mark is not None:
                by_depth[min(depth, _MAX_DEPTH)].append((value, mark))
    flat = [pair for pairs in by_depth.values() for pair in pairs]
    found: dict[str, Any] = {"auroc": _auroc_of(flat)}
    for depth in sorted(by_depth):
        found[f"auroc_depth{depth}"] = _auroc_of(by_depth[depth])
    return found


def _auroc_of(pairs: Sequence[tuple[float, float]]) -> float | None:
    return auroc([score for score, _ in pairs], [label for _, label in pairs])


def choice_measures(
    solutions: Sequence[Labelled], values: Sequence[float], sizes: Sequence[int] = (4, 16, 64)
) -> dict[str, Any]:
    """Accuracy of choosing among the first N solutions of each question, in percent.

    `random` is the mean over the solutions; `best` takes the highest value, `weighted` the answer
    with the largest sum of values, `majority` the most frequent answer; ties share. Questions with
    fewer than N solutions count with what they have; `within` is the mean AUROC within a question.

    Args:
        solutions: with outcomes; those of unknown outcome are left out.
        values: one number per solution.
        sizes: numbers of solutions N.
    """
    by_question: dict[str, list[tuple[float, float, str | None]]] = defaultdict(list)
    for solution, value in zip(solutions, values, strict=True):
        if solution.outcome is not None:
            by_question[solution.id].append((value, solution.outcome, solution.answer))
    inside = [
        found
        for many in by_question.values()
        if (found := auroc([m[0] for m in many], [m[1] for m in many])) is not None
    ]
    measures: dict[str, Any] = {
        "questions": len(by_question),
        "within": float(np.mean(inside)) if inside else None,
        "random": _percent([float(np.mean([m[1] for m in many])) for many in by_question.values()]),
    }
    largest = max((len(many) for many in by_question.values()), default=0)
    for size in sorted({min(size, largest) for size in sizes} - {0, 1}):
        groups = [many[:size] for many in by_question.values()]
        measures[f"best@{size}"] = _percent([_best(group) for group in groups])
        measures[f"weighted@{size}"] = _percent([_vote(g, [m[0] for m in g]) for g in groups])
        measures[f"majority@{size}"] = _percent([_vote(g, [1.0] * len(g)) for g in groups])
        measures[f"pass@{size}"] = _percent([max(m[1] for m in group) for group in groups])
    return measures


_Choice = tuple[float, float, str | None]


def _best(group: Sequence[_Choice]) -> float:
    top = max(value for value, _, _ in group)
    return float(np.mean([outcome for value, outcome, _ in group if value == top]))


def _vote(group: Sequence[_Choice], weights: Sequence[float]) -> float:
    totals: dict[str, float] = defaultdict(float)
    outcomes: dict[str, float] = {}
    for (_, outcome, answer), weight in zip(group, weights, strict=True):
        if answer is not None:
            totals[answer] += weight
            outcomes[answer] = outcome
    if not totals:
        return 0.0
    top = max(totals.values())
    return float(np.mean([outcomes[a] for a, total in totals.items() if total == top]))


def _percent(values: Sequence[float]) -> float | None:
    return round(100 * float(np.mean(values)), 2) if values else None
