"""Selection: which finished chain is the answer. Works on any tree, afterwards too.

`best` takes the chain with the highest value, `weighted` the answer with the largest sum of values
(Li et al. 2023, arXiv:2206.02336), `majority` the most frequent answer (Wang et al. 2023,
arXiv:2203.11171). Ties go to the answer with the better best member, then to the earliest chain.

A sum of values is the number of votes times their mean value. `weighted` takes the votes to the
power of `vote_weight`: 1 is the sum, 0 the mean value of an answer's chains, and the larger it is
the more it is like `majority`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.task import Task
from stepsearch.search.tree import Tree
from stepsearch.search.types import Candidate

Selection = Literal["best", "weighted", "majority"]
SELECTIONS: tuple[Selection, ...] = ("best", "weighted", "majority")


class Choice(NamedTuple):
    """The chosen chain.

    Attributes:
        candidate: the best member of the winning answer; None when there is no candidate. Without
            any answer it is the best chain, with `answer=None`.
        score: what the answer was ranked by: the chain's value (`best`), the share of all values
            (`weighted`) or of all votes (`majority`); None when there is no answer.
    """

    candidate: Candidate | None
    score: float | None


def candidates(
    tree: Tree, task: Task, value: Callable[[int], float | None]
) -> tuple[Candidate, ...]:
    """Finished chains, and chains that were cut but from which an answer can be extracted."""
    found = []
    for node in tree.terminals():
        stop = tree.stop(node)
        answer = task.extract(tree.chain(node).text)
        if not isinstance(answer, str | None):
            raise TypeError(f"the task extracted {answer!r}, which is neither a text nor None")
        if stop == "eos" or answer is not None:
            found.append(Candidate(node=node, answer=answer, score=value(node), stop=stop))
    return tuple(found)


def default_selection(spec: VerifierSpec | None) -> Selection:
    """The selection used when none was asked for."""
    if spec is None:
        return "majority"
    return "weighted" if spec.range == "probability" else "best"


def require_known(by: str) -> None:
    """Raise `ConfigurationError` when there is no such selection."""
    if by not in SELECTIONS:
        raise ConfigurationError(f"select={by!r} is not one of {', '.join(SELECTIONS)}")


def require_selection(by: str, spec: VerifierSpec | None) -> None:
    """Raise `ConfigurationError` when the selection does not fit the verifier."""
    require_known(by)
    if by != "majority" and spec is None:
        raise ConfigurationError(f"select={by!r} needs a verifier; without one use majority")
    if by == "weighted" and spec is not None and spec.range != "probability":
        raise ConfigurationError(
            f"select='weighted' adds up probabilities, but verifier {spec.name!r} has "
            f"range {spec.range!r}; use select=best or majority"
        )


def require_floor(floor: object, by: Selection, spec: VerifierSpec | None) -> None:
    """Raise `ConfigurationError` when `abstain_below` cannot be compared with scores."""
    if floor is None:
        return
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not math.isfinite(floor):
        raise ConfigurationError(f"abstain_below={floor!r} must be a finite number or null")
    is_share = by != "best" or (spec is not None and spec.range == "probability")
    if is_share and not 0 <= floor <= 1:
        raise ConfigurationError(
            f"abstain_below={floor} is compared with scores between 0 and 1 (select={by!r}); "
            "give a number in [0, 1]"
        )


def is_doubtful(choice: Choice, by: Selection, floor: float) -> bool:
    """Whether an answer is to be withheld because of `abstain_below`.

    `weighted` has two reasons for doubt: that other answers have much of the scores, and that the
    verifier thinks little even of the best chain with this one, as when all agree on something
    wrong. `best` knows the second alone, `majority`, which reads no scores, the first.
    """
    told = [choice.score]
    if by == "weighted" and choice.candidate is not None:
        told.append(choice.candidate.score)
    return any(score is None or score < floor for score in told)


def require_vote_weight(weight: object) -> None:
    """Raise `ConfigurationError` when the exponent of the votes is no number from 0 on."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < 1e3:
        raise ConfigurationError(
            f"vote_weight={weight!r} must be a number from 0 (votes do not count) on; "
            "1 adds up scores, select=majority counts votes alone"
        )


def choose(
    found: Sequence[Candidate],
    by: Selection,
    equal: Callable[[str, str], bool | None],
    vote_weight: float = 1.0,
) -> Choice:
    """Choose among candidates.

    Args:
        found: the candidates, in the order they were submitted.
        by: the selection; `best` and `weighted` leave out chains without a score.
        equal: whether two answers are equal; None ("could not be decided") counts as not equal.
        vote_weight: exponent of the number of votes in `weighted`.
    """
    ranked = [c for c in found if by == "majority" or c.score is not None]
    voters = [c for c in ranked if c.answer is not None]
    if not voters:
        return Choice(_best(ranked), None)
    if by == "best":
        best = _best(voters)
        return Choice(best, best.score if best else None)
    clusters = cluster(voters, equal)
    most = max(map(len, clusters))
    weights = [
        float(len(c)) if by == "majority" else _weight(c, most, vote_weight) for c in clusters
    ]
    keys = [
        (weight, _value(_best(members)), -members[0].node)
        for weight, members in zip(weights, clusters, strict=True)
    ]
    winner = max(range(len(clusters)), key=keys.__getitem__)
    total = math.fsum(weights)
    return Choice(_best(clusters[winner]), weights[winner] / total if total > 0 else 0.0)


def _weight(members: Sequence[Candidate], most: int, vote_weight: float) -> float:
    """The members' mean score times their number to the power of `vote_weight`.

    The number is taken relative to the `most` members of any answer, so that no power overflows.
    """
    total = math.fsum(member.score or 0.0 for member in members)
    if vote_weight == 1:
        return total
    share: float = (len(members) / most) ** vote_weight
    return total / len(members) * share


def cluster(
    voters: Sequence[Candidate], equal: Callable[[str, str], bool | None]
) -> list[list[Candidate]]:
    """Group candidates by answer; an answer is compared with each group's first member."""
    clusters: list[list[Candidate]] = []
    by_text: dict[str, list[Candidate]] = {}
    for voter in voters:
        assert voter.answer is not None
        group = by_text.get(voter.answer)
        if group is None:
            group = next((c for c in clusters if equal(c[0].answer or "", voter.answer)), None)
            if group is None:
                clusters.append(group := [])
            by_text[voter.answer] = group
        group.append(voter)
    return clusters


def _value(candidate: Candidate | None) -> float:
    return -math.inf if candidate is None or candidate.score is None else candidate.score


def _best(found: Sequence[Candidate]) -> Candidate | None:
    return max(found, key=_value, default=None)
