"""The chains that a self-check scores: odd steps, right answers, and the same with an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step

QUESTION = "Tom has 3 boxes of 4 pens and gives 5 pens away. How many pens has he left?"
STEPS = (
    "There are 3 * 4 = 12 pens in the boxes.",
    "He keeps 12 - 5 = 7 pens.",
    "The answer is 7.",
)


class Probe(NamedTuple):
    """A question with its steps."""

    name: str
    question: str
    steps: tuple[str, ...]

    def chain(self, num_steps: int | None = None, num_new: int = -1) -> Chain:
        """Its first steps as a chain."""
        return chain_of(self.question, self.steps[:num_steps], num_new)


class Twins(NamedTuple):
    """Two questions of one form, whose right results are the wrong ones of each other.

    A verifier that likes some numbers better than others, whatever was asked, prefers the right
    step of one and the wrong step of the other.
    """

    question: str
    step: str
    first: tuple[int, int, int]
    second: tuple[int, int, int]


_TWINS = (
    Twins("Tom has {} boxes of {} pens. How many?", "{} * {} = {} pens.", (3, 4, 12), (2, 7, 14)),
    Twins("Ann had {} eggs and ate {}. How many?", "{} - {} = {} eggs.", (9, 2, 7), (8, 3, 5)),
    Twins("{} red and {} blue balls: how many?", "{} + {} = {} balls.", (15, 8, 23), (12, 9, 21)),
    Twins("{} km in {} hours: how far in one?", "{} / {} = {} km.", (120, 2, 60), (150, 3, 50)),
    Twins("A book is ${}, a pen ${}. Both?", "{} + {} = {} dollars.", (11, 4, 15), (14, 5, 19)),
    Twins("{} children, {} a group. How many?", "{} / {} = {} groups.", (24, 4, 6), (32, 4, 8)),
)


def odd_probes(spec: VerifierSpec) -> list[Probe]:
    """Chains at which marks were lost, merged or doubled."""
    probes = [
        Probe("several steps", QUESTION, STEPS),
        Probe(
            "a newline inside a step",
            QUESTION,
            ("There are 3 boxes.\nEach holds 4 pens.", "3 * 4 = 12"),
        ),
        Probe("an empty step", QUESTION, ("There are 3 boxes.", "", "3 * 4 = 12")),
        Probe("one step", QUESTION, ("The answer is 7.",)),
    ]
    mark = spec.provenance.get("format", {}).get("mark")
    if mark and mark not in spec.reserved:
        quoted = f"{QUESTION} ({mark}{mark})"
        probes.append(Probe("the mark in the question and in a step", quoted, (mark, *STEPS)))
    return probes


def proof_probes() -> list[Probe]:
    """Right and wrong answers in turn: right, wrong, right, wrong and so on."""
    probes = []
    for twins in _TWINS:
        for (a, b, right), (_, _, wrong) in (
            (twins.first, twins.second),
            (twins.second, twins.first),
        ):
            for result in (right, wrong):
                text = twins.step.format(a, b, result) + f" The answer is {result}."
                probes.append(Probe("proof", twins.question.format(a, b), (text,)))
    return probes


def chain_of(question: str, steps: Sequence[str], num_new: int = -1) -> Chain:
    """Steps as policies end them, all awaiting a score or the newest ones only."""
    return Tree(question).chain(0, tuple(Step(text=f"{s}\n\n") for s in steps), num_new=num_new)
