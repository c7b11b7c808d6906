"""Choosing among finished chains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsearch.search.errors import ConfigurationError
from stepsearch.search.select import (
    SELECTIONS,
    candidates,
    choose,
    cluster,
    require_vote_weight,
)
from stepsearch.search.task import MathTask
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Candidate, Step


def c(node: int, answer: str | None, score: float | None, stop: str = "eos") -> Candidate:
    return Candidate(node=node, answer=answer, score=score, stop=stop)


def same(a: str, b: str) -> bool:
    return a == b


def test_best_takes_the_highest_value() -> None:
    found = [c(1, "1", 0.3), c(2, "2", 0.9), c(3, "1", 0.8)]
    choice = choose(found, "best", same)
    assert (choice.candidate, choice.score) == (found[1], 0.9)


def test_weighted_adds_up_and_majority_counts() -> None:
    found = [c(1, "1", 0.3), c(2, "2", 0.9), c(3, "1", 0.4), c(4, "1", 0.1)]
    weighted = choose(found, "weighted", same)
    assert (weighted.candidate, weighted.score) == (found[1], pytest.approx(0.9 / 1.7))
    majority = choose(found, "majority", same)
    assert (majority.candidate, majority.score) == (found[2], 0.75)


@pytest.mark.parametrize("by", SELECTIONS)
def test_chains_without_an_answer_do_not_vote(by) -> None:
    silent = [c(n, None, 0.99) for n in range(1, 6)]
    found = [*silent, c(6, "7", 0.2)]
    choice = choose(found, by, same)
    assert choice.candidate == found[5]
    assert choose(silent, by, same).candidate.answer is None
    assert choose(silent, by, same).score is None
    assert choose([], by, same) == (None, None)


@pytest.mark.parametrize("by", ["best", "weighted"])
def test_a_failed_score_is_never_selected(by) -> None:
    found = [c(1, "1", None), c(2, "1", None), c(3, "2", 0.0)]
    assert choose(found, by, same).candidate == found[2]


def test_ties_go_to_the_better_member_then_to_the_earlier_chain() -> None:
    found = [c(1, "1", 0.3), c(2, "2", 0.4), c(3, "1", 0.3), c(4, "2", 0.2)]
    assert choose(found, "majority", same).candidate == found[1]
    equal = [c(1, "1", 0.5), c(2, "2", 0.5)]
    for by in SELECTIONS:
        assert choose(equal, by, same).candidate == equal[0]


@given(st.permutations(list(range(6))))
def test_the_order_of_candidates_does_not_matter_but_for_ties(order) -> None:
    found = [c(n + 1, str(n % 3), 0.1 * (n + 1)) for n in range(6)]
    shuffled = [found[i] for i in order]
    for by in SELECTIONS:
        assert choose(shuffled, by, same) == pytest.approx(choose(found, by, same))


def test_undecided_is_not_equal_and_groups_compare_with_their_first_member() -> None:
    asked = []

    def equal(a: str, b: str) -> bool | None:
        asked.append((a, b))
        return None if "?" in b else a.lower() == b.lower()

    groups = cluster([c(1, "a", 0.1), c(2, "A", 0.1), c(3, "?", 0.1), c(4, "A", 0.1)], equal)
    assert [[m.node for m in g] for g in groups] == [[1, 2, 4], [3]]
    assert asked == [("a", "A"), ("a", "?")]


def test_one_zero_weight_answer_is_still_the_answer() -> None:
    choice = choose([c(1, "1", 0.0)], "weighted", same)
    assert (choice.candidate.answer, choice.score) == ("1", 0.0)


def test_only_finished_chains_and_cut_ones_with_an_answer_are_candidates() -> None:
    tree = Tree("q")
    tree.add(ROOT, Step(text="#### 1", stop="eos"))
    tree.add(ROOT, Step(text="no answer", stop="eos"))
    tree.add(ROOT, Step(text="#### 2", stop="length"))
    tree.add(ROOT, Step(text="cut in the midd", stop="budget"))
    tree.add(ROOT, Step(text="#### 3\n", stop="step"))
    found = candidates(tree, MathTask(), lambda node: None)
    assert [(f.node, f.answer, f.stop) for f in found] == [
        (1, "1", "eos"),
        (2, None, "eos"),
        (3, "2", "length"),
    ]


def test_the_weight_of_votes_goes_from_the_mean_score_to_the_majority() -> None:
    found = [
        Candidate(node=i, answer=answer, score=score, stop="eos")
        for i, (answer, score) in enumerate(
            [("a", 0.9), ("b", 0.5), ("b", 0.5), *[("c", 0.2)] * 4, ("c", 0.1)]
        )
    ]

    def chosen(weight: float) -> str | None:
        candidate = choose(found, "weighted", str.__eq__, weight).candidate
        return None if candidate is None else candidate.answer

    assert [chosen(w) for w in (0, 0.5, 1, 2, 50)] == ["a", "a", "b", "c", "c"]
    summed = choose(found, "weighted", str.__eq__)
    assert summed == choose(found, "weighted", str.__eq__, 1.0)
    assert summed.score == pytest.approx(1.0 / 2.8)


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), True, "x"])
def test_a_weight_of_votes_that_means_nothing_is_refused(weight: object) -> None:
    with pytest.raises(ConfigurationError, match="vote_weight"):
        require_vote_weight(weight)


def test_the_weight_of_votes_reaches_engine_and_trace() -> None:
    from support.worlds import engine, hash_verifier, random_policy

    from stepsearch.search.strategies.best_of_n import BestOfN
    from stepsearch.search.task import ExactTask
    from stepsearch.search.trace import decode, encode

    made = engine(BestOfN(n=16), random_policy(), hash_verifier(), vote_weight=0.0)
    solution = made.solve("which way?")
    means = choose(solution.candidates, "weighted", str.__eq__, 0.0)
    assert (
        solution.score == means.score != choose(solution.candidates, "weighted", str.__eq__).score
    )
    trace = decode(encode(solution, {"verifier": {"name": "scripted"}, "aggregation": "last"}))
    again = trace.select("weighted", task=ExactTask(), vote_weight=0.0)
    assert again.score == pytest.approx(solution.score)
