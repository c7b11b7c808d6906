"""Labels without a model: the outcome of a solution, and equations that are wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stepsearch.search.canonical import canonical
from stepsearch.search.task import Task
from stepsearch.verifiers.equations.checker import check_equations
from stepsearch.verifiers.training.examples import Label
from stepsearch.verifiers.training.lines import kept_of

Steps = Literal["outcome", "checker", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeLabels:
    """Labels every step by the outcome of its solution, by its equations, or by both.

    Attributes:
        task: extracts and compares answers.
        steps: `outcome` gives every step the outcome; `checker` labels 0 from the first wrong
            equation on, 1 what has right ones only before it, and leaves the rest unlabelled;
            `both` is the outcome, but 0 from the first wrong equation on, since a right answer
            behind one is luck.
        separator: ends a step.
    """

    task: Task
    steps: Steps = "both"
    separator: str = "\n"

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A labelled row out of a row of samples."""
        gold = str(row["answer"])
        solutions = [self._label(sample["text"], gold) for sample in row["samples"]]
        return kept_of(row) | {"solutions": [s for s in solutions if s["steps"]]}

    def _label(self, text: str, gold: str) -> dict[str, Any]:
        steps = split_steps(text, self.separator)
        right = self.task.grade(text, gold)
        outcome = None if right is None else float(right)
        answer = self.task.extract(text)
        labels: list[Label] = [outcome] * len(steps)
        if self.steps != "outcome":
            checked = checker_labels(steps)
            labels = checked if self.steps == "checker" else _both(labels, checked)
        return {
            "steps": steps,
            "labels": labels,
            "outcome": outcome,
            "answer": None if answer is None else canonical(answer) or answer,
        }


def split_steps(text: str, separator: str) -> list[str]:
    """The steps of a solution, without their separators; empty ones are no steps."""
    return [step.rstrip() for step in text.split(separator) if step.strip()]


def checker_labels(steps: Sequence[str]) -> list[Label]:
    """0 from the first wrong equation on; 1 for steps with right ones only; None for the rest."""
    labels: list[Label] = []
    spoiled = False
    for step in steps:
        verdicts = {equation.verdict for equation in check_equations(step)}
        spoiled = spoiled or "wrong" in verdicts
        labels.append(0.0 if spoiled else 1.0 if "right" in verdicts else None)
    return labels


def _both(labels: Sequence[Label], checked: Sequence[Label]) -> list[Label]:
    return [0.0 if c == 0.0 else label for label, c in zip(labels, checked, strict=True)]
