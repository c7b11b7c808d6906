"""How good labels and a verifier's scores are against what is known of a made problem.

Two truths are looked at. The outcome: the chain's answer is right, at all of its steps. The state:
the number that a step arrives at is the one that the problem's own solution has at that step, which
asks neither how the chain got there nor what it does later.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepsearch.search.aggregate import aggregate
from stepsearch.verifiers.training.examples import Labelled, labelled_of
from stepsearch.verifiers.training.lines import Row, read_lines
from stepsearch.verifiers.training.measures import auroc, choice_measures
from stepsearch.verifiers.training.scorer import score_rows

_STATE = re.compile(r"(?:=|####)\s*(\d+)")


class Judged(NamedTuple):
    """A step with its score and what is true of it.

    Attributes:
        place: its question and number; only steps of one place are compared.
        score: of the verifier.
        outcome: whether the chain's answer is right; None where that could not be decided.
        state: whether the step's own number is right.
    """

    place: tuple[str, int]
    score: float
    outcome: float | None
    state: float


def states(steps: Iterable[str]) -> list[str | None]:
    """The number that every step arrives at; None where it states none."""
    return [found[-1] if (found := _STATE.findall(step)) else None for step in steps]


def right_states(steps: Sequence[str], worked: str) -> list[float]:
    """1 for each step that arrives where the worked solution is at that step, else 0."""
    own, gold = states(steps), states(worked.split("\n"))
    gold += [None] * (len(own) - len(gold))
    return [float(a is not None and a == b) for a, b in zip(own, gold, strict=False)]


def label_figures(labelled: Path, worked: Mapping[str, str]) -> dict[str, float]:
    """How many solutions and steps are labelled, and the share, in %, labelled as their state is.

    Labels from 0.5 on say right.
    """
    solutions, agree = 0, list[bool]()
    for solution in labelled_of(read_lines(labelled)):
        truth = right_states(solution.steps, worked[solution.id])
        pairs = [p for p in zip(solution.labels, truth, strict=True) if p[0] is not None]
        agree += [(label >= 0.5) == (state == 1) for label, state in pairs if label is not None]
        solutions += bool(pairs)
    return {"solutions": solutions, "steps": len(agree), "agree": 100 * float(np.mean(agree))}


def verifier_figures(
    prm: Path, rows: Sequence[Row], worked: Mapping[str, str], size: int
) -> dict[str, Any]:
    """AUROC against both truths, and accuracies, in %, of choosing among `size` samples.

    The AUROC is that of the steps with the same number in the samples of the same question, over
    all such places at which right and wrong ones meet. A chain's value is its last step's score.

    Args:
        prm: folder of the verifier.
        rows: held-out solutions with outcomes; scores are entered.
        worked: worked solutions by id.
        size: samples of a question.
    """
    score_rows(prm, rows, "cpu")
    told = [s for row in rows for s in row["solutions"]]
    solutions = list(labelled_of(rows))
    scores = [solution["scores"]["prm"] for solution in told]
    judged = [j for s, own in zip(solutions, scores, strict=True) for j in _judged(s, own, worked)]
    values = [aggregate("last", tuple(own)) or 0.0 for own in scores]
    found = choice_measures(solutions, values, [size])
    known = [(j.place, j.score, j.outcome) for j in judged if j.outcome is not None]
    return {
        "auroc_state": _within((j.place, j.score, j.state) for j in judged),
        "auroc_outcome": _within(known),
        "random": found["random"],
        **{name: found[f"{name}@{size}"] for name in ("best", "weighted", "majority", "pass")},
    }


def _judged(
    solution: Labelled, scores: Sequence[float], worked: Mapping[str, str]
) -> Iterable[Judged]:
    truth = right_states(solution.steps, worked[solution.id])
    for number, (score, state) in enumerate(zip(scores, truth, strict=True)):
        yield Judged((solution.id, number), score, solution.outcome, state)


def _within(steps: Iterable[tuple[tuple[str, int], float, float]]) -> float | None:
    """Mean AUROC over places; None where right and wrong steps meet nowhere."""
    by_place: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for place, score, truth in steps:
        by_place[place].append((score, truth))
    found = [auroc([s for s, _ in own], [t for _, t in own]) for own in by_place.values()]
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if known else None
