"""REBASE: widths in proportion to the softmax of the scores."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worlds import (
    engine,
    hash_verifier,
    outline,
    random_policy,
    table_policy,
    table_verifier,
)

from stepsearch import ConfigurationError, Problem
from stepsearch.search.strategies.rebase import Rebase, apportion

GOLDEN = Path(__file__).parent.parent / "golden"

TABLE = {
    "": ["a ", "b ", "c "],
    "a ": ["a ", "d "],
    "b ": ["a ", "#### 1."],
    "c ": ["#### 2."],
    "a a ": ["#### 3."],
    "a d ": ["#### 4."],
    "b a ": ["#### 5."],
}
SCORES = {
    "a ": 0.6,
    "b ": 0.5,
    "c ": 0.3,
    "a a ": 0.5,
    "a d ": 0.4,
    "b a ": 0.2,
    "b #### 1.": 0.9,
    "c #### 2.": 0.8,
    "a a #### 3.": 0.7,
    "a d #### 4.": 0.6,
    "b a #### 5.": 0.1,
}


def test_golden_tree() -> None:
    """Checked by hand; at this temperature a score of s weighs 2^(10 s).

    Step 1 draws b a b b a c c, which weigh 32 64 32 32 64 8 8 of 240. None is finished, so the
    width is 7 and the quotas are .93 1.87 .93 .93 1.87 .23 .23: whole parts 0 1 0 0 1 0 0, and the
    5 that are left go to the five largest remainders: widths 1 2 1 1 2 0 0.
    Step 2 finishes one chain, so the width is 6 for d d a a a d of weights 16 16 4 4 32 16 of 88:
    quotas 1.09 1.09 .27 .27 2.18 1.09, whole parts 1 1 0 0 2 1, and the one that is left goes to
    the first .27. All of them finish: 7 chains.
    """
    solution = engine(
        Rebase(n=7, temperature=0.1 / math.log(2)),
        table_policy(TABLE),
        table_verifier(SCORES),
        seed=4,
    ).solve("q")
    assert outline(solution.tree) == (GOLDEN / "rebase.txt").read_text()
    assert (solution.stop, len(solution.candidates)) == ("done", 7)


@pytest.mark.parametrize(("n", "temperature"), [(1, 0.1), (6, 0.1), (12, 1.0)])
def test_the_width_is_what_has_not_finished(n: int, temperature: float) -> None:
    for i in range(10):
        search = engine(Rebase(n=n, temperature=temperature), random_policy(), hash_verifier())
        tree = search.solve(Problem(text="q", id=str(i))).tree
        finished = 0
        for depth in range(1, max(tree.depth) + 1):
            level = [node for node in range(1, len(tree)) if tree.depth[node] == depth]
            assert len(level) == n - finished
            finished += sum(tree.is_terminal(node) for node in level)
        assert finished == n


@given(
    weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(lambda w: sum(w) > 1e-3),
    total=st.integers(0, 200),
)
def test_shares_sum_and_stay_within_one_of_their_quota(weights, total: int) -> None:
    shares = apportion(weights, total)
    assert sum(shares) == total
    for weight, share in zip(weights, shares, strict=True):
        assert abs(share - total * weight / math.fsum(weights)) < 1 + 1e-6


def test_shares_by_hand() -> None:
    assert apportion([1, 1, 1], 4) == [2, 1, 1], "the earlier one wins a tie"
    assert apportion([5, 3, 1], 9) == [5, 3, 1]
    assert apportion([1, 0], 3) == [3, 0]
    assert apportion([41, 29, 17, 13], 20) == [8, 6, 3, 3], "8.2 5.8 3.4 2.6"


def test_scores_of_any_size_are_shared_out() -> None:
    for scale in (1e-300, 1.0, 1e290):
        verifier = table_verifier({k: v * scale for k, v in SCORES.items()}, range="unbounded")
        search = engine(Rebase(n=5, temperature=1e-6), table_policy(TABLE), verifier)
        assert search.solve("q").stop == "done"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 0}, "search.n=0"),
        ({"max_steps": -1}, "search.max_steps=-1"),
        ({"temperature": 0}, "search.temperature=0 must be a finite number, above 0"),
        ({"temperature": -0.5}, "search.temperature=-0.5"),
        ({"temperature": math.inf}, "search.temperature=inf"),
        ({"temperature": math.nan}, "search.temperature=nan"),
        ({"temperature": "hot"}, "search.temperature='hot'"),
    ],
)
def test_parameters_are_checked(settings, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Rebase(**settings)
