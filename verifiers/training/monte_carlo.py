"""Labels by rollouts: the value of every prefix, or the first step that spoils a solution.

Wang et al. 2024 (Math-Shepherd): a step is as good as the share of continuations from it that end
right (soft), or right when any does (hard). Luo et al. 2024 (OmegaPRM): that value falls to 0 once
and stays there, so the step where it does is found by bisection, with far fewer rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stepsearch.search.canonical import canonical
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.task import Task
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.training.examples import Label
from stepsearch.verifiers.training.lines import kept_of
from stepsearch.verifiers.training.rollouts import Rollouts, seeds_of

Value = Literal["soft", "hard"]


@dataclass(slots=True, kw_only=True)
class RolloutLabels:
    """Labels the steps of sampled solutions by continuations of their prefixes.

    Attributes:
        rollouts: asks the policy.
        task: extracts and compares answers.
        seed: of the run.
        k: continuations per prefix.
        value: `soft` is the share of right ones, `hard` whether there is one.
        bisects: look for the first step from which nothing ends right, instead of at every one.
        num_full: rollouts that looking at every prefix would have taken.
    """

    rollouts: Rollouts
    task: Task
    seed: int = 0
    k: int = 4
    value: Value = "soft"
    bisects: bool = False
    num_full: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigurationError(f"k={self.k} must be at least 1")
        if self.value not in ("soft", "hard"):
            raise ConfigurationError(f"value={self.value!r} must be soft or hard")

    async def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A labelled row out of a row of samples, which must hold the ids of its tokens.

        A sample without a text has no step to label and is left out, as by `OutcomeLabels`.
        """
        tree = Tree(row["problem"], self.task.word(row["problem"]))
        solutions = []
        for number, sample in enumerate(row["samples"]):
            if not sample["text"].strip():
                continue
            if "steps" not in sample:
                raise ConfigurationError(
                    f"samples of {row['id']!r} hold no token ids, which rollouts go on from; "
                    "sample with token_ids=true"
                )
            name = f"{row['id']}\x00{number}"
            solutions.append(await self._label(tree, name, sample, str(row["answer"])))
        return kept_of(row) | {"solutions": solutions}

    async def _label(
        self, tree: Tree, name: str, sample: Mapping[str, Any], gold: str
    ) -> dict[str, Any]:
        steps = _steps(sample)
        right = self.task.grade(sample["text"], gold)
        outcome = None if right is None else float(right)
        prefix = _Prefix(self, tree, name, steps, gold)
        count = len(steps) - 1
        self.num_full += self.k * count
        if self.bisects:
            labels = await _bisect(prefix, count, outcome)
        else:
            labels = [await prefix.value(length) for length in range(1, count + 1)]
        answer = self.task.extract(sample["text"])
        return {
            "steps": [step.text.rstrip() for step in steps],
            "labels": [*labels, outcome],
            "outcome": outcome,
            "answer": None if answer is None else canonical(answer) or answer,
        }


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Prefixes of one solution and what becomes of them."""

    labels: RolloutLabels
    tree: Tree
    name: str
    steps: Sequence[Step]
    gold: str

    async def value(self, length: int) -> Label:
        """The value of the first `length` steps; None when no continuation could be graded."""
        how, chain = self.labels, Chain(self.tree, ROOT, tuple(self.steps[:length]))
        found = await how.rollouts(chain, seeds_of(how.seed, f"{self.name}\x00{length}", how.k))
        begun = "".join(step.text for step in self.steps[:length])
        texts = [begun + "".join(step.text for step in steps) for steps in found]
        grades = [g for text in texts if (g := how.task.grade(text, self.gold)) is not None]
        if not grades:
            return None
        return sum(grades) / len(grades) if how.value == "soft" else float(any(grades))


async def _bisect(prefix: _Prefix, count: int, outcome: float | None) -> list[Label]:
    """1 before the first step from which nothing ends right, 0 from it on, None where unknown.

    A right solution needs no rollouts: every prefix of it can end right. One whose every prefix
    can still end right has its error in the last step. Where no continuation could be graded, the
    prefixes next to it are looked at; what none of them settles stays unknown.
    """
    if outcome is None:
        return [None] * count
    if outcome == 1:
        return [1.0] * count
    good, bad = 0, count + 1  # prefixes of length `good` can end right, of length `bad` cannot
    unknown = set[int]()
    while left := [length for length in range(good + 1, bad) if length not in unknown]:
        middle = min(left, key=lambda length: abs(length - (good + bad) // 2))
        value = await prefix.value(middle)
        if value is None:
            unknown.add(middle)
        elif value:
            good = middle
        else:
            bad = middle
    known: list[Label] = [1.0] * good + [None] * (bad - good - 1) + [0.0] * (count + 1 - bad)
    return known


def _steps(sample: Mapping[str, Any]) -> list[Step]:
    """The steps as they were sampled; all but the last can be continued."""
    return [Step(text=s["text"], token_ids=tuple(s["token_ids"])) for s in sample["steps"]]
