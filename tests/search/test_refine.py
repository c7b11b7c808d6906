"""Refinement: cut at the weakest step, write the rest again, keep what is better."""

from pathlib import Path

import pytest
from support.worlds import (
    engine,
    hash_verifier,
    outline,
    random_policy,
    table_policy,
    table_verifier,
)

from stepsearch import Budget, Chain, ConfigurationError, SamplingParams, ScoreFailure
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.refine import Refine
from stepsearch.search.task import MathTask
from stepsearch.search.tree import ROOT
from stepsearch.verifiers.scripted import ScriptedVerifier

GOLDEN = Path(__file__).parent.parent / "golden"

TABLE = {
    "": ["a "],
    "a ": ["b ", "c "],
    "a b ": ["#### 1.", "#### 2.", "#### 1."],
    "a c ": ["#### 3."],
}
SCORES = {
    "a ": 0.9,
    "a b ": 0.8,
    "a c ": 0.3,
    "a b #### 1.": 0.2,
    "a b #### 2.": 0.6,
    "a c #### 3.": 0.5,
}


def test_golden_tree() -> None:
    """Checked by hand, version by version.

    1. a c 3: .9 .3 .5, worth .5; the weakest step is c, so it is cut after a.
    2. a b 1: worth .2, so the old one stays and is cut after a again.
    3. a b 2: .9 .8 .6, worth .6 and kept; the weakest step is the last, so it is cut after this b.
    4. and 5. a b 1: worth .2, and not kept.
    """
    solution = engine(
        Refine(n=1, rounds=4), table_policy(TABLE), table_verifier(SCORES), seed=20, select="best"
    ).solve("q")
    assert outline(solution.tree) == (GOLDEN / "refine.txt").read_text()
    assert (solution.stop, solution.answer, solution.score) == ("done", "2.", 0.6)
    assert len(solution.candidates) == 5, "every version is a candidate"


def test_a_revision_that_spoils_the_chain_is_not_followed() -> None:
    """Right at first, always wrong afterwards: the first version is the answer."""
    calls = []

    def propose(chain: Chain, seed: int):
        calls.append(seed)
        return scripted_step("#### right" if len(calls) == 1 else "#### wrong", "eos")

    verifier = ScriptedVerifier(score_fn=lambda chain: 0.9 if "right" in chain.text else 0.1)
    solution = engine(
        Refine(n=1, rounds=5), ScriptedPolicy(propose), verifier, select="best"
    ).solve("q")
    assert (solution.answer, len(solution.candidates)) == ("right", 6)


def test_a_finished_chain_is_better_than_one_that_is_not() -> None:
    sizes = iter([5, 1])

    def grow(chain: Chain, seed: int):
        return scripted_step("word " * next(sizes) + "#### 1", "eos")

    verifier = ScriptedVerifier(score_fn=lambda chain: 1.0 if len(chain.text) > 20 else 0.2)
    solution = engine(
        Refine(n=1, rounds=1),
        ScriptedPolicy(grow),
        verifier,
        sampling=SamplingParams(max_step_tokens=4, max_tokens=8),
        task=MathTask(),
        select="best",
    ).solve("q")
    assert [solution.tree.stop(node) for node in solution.tree.leaves()] == ["length", "eos"]
    assert solution.answer == "1"


def test_a_chain_without_scores_is_written_again_from_the_start() -> None:
    first = []

    def score(chain: Chain) -> float | ScoreFailure:
        first.append(chain)
        return ScoreFailure("missing", "no verdict") if len(first) == 1 else 0.5

    verifier = ScriptedVerifier(score_fn=score)
    policy = random_policy(eos=0, max_depth=3)
    solution = engine(Refine(n=1, rounds=1), policy, verifier, select="best").solve("q")
    assert solution.tree.num_children(ROOT) == 2
    assert (solution.stop, solution.score) == ("done", 0.5)


def test_a_failing_revision_is_not_the_searchs_failure() -> None:
    seen = []

    def score(chain: Chain) -> float | ScoreFailure:
        seen.append(chain)
        return 0.5 if len(seen) == 1 else ScoreFailure("missing", "no verdict")

    verifier = ScriptedVerifier(score_fn=score)
    solution = engine(Refine(n=1, rounds=2), random_policy(), verifier, select="best").solve("q")
    assert (solution.stop, solution.score) == ("done", 0.5)
    assert solution.error == "missing: no verdict"


def test_the_step_scores_decide_where_to_cut_whatever_the_aggregation() -> None:
    """Under a product every later prefix is worth less; the weakest step is still the second."""
    scores = {"a ": 0.9, "a b ": 0.2, "a b c ": 0.8, "a b c #### 1.": 0.7}
    table = {"": ["a "], "a ": ["b "], "a b ": ["c "], "a b c ": ["#### 1."]}
    for aggregation in ("last", "min", "mean", "product"):
        solution = engine(
            Refine(n=1, rounds=1),
            table_policy(table),
            table_verifier(scores),
            aggregation=aggregation,
        ).solve("q")
        [first] = solution.tree.children(ROOT)
        assert solution.tree.num_children(first) == 2, "cut after a"


def test_a_verifier_that_scores_all_steps_anew_works() -> None:
    """Its scores of a step change as the chain grows; those of the whole chain count."""
    verifier = ScriptedVerifier(
        score_fn=lambda chain: [0.1 if k == len(chain) - 2 else 0.5 for k in range(len(chain))],
        incremental=False,
    )
    policy = random_policy(eos=0, max_depth=4)
    tree = engine(Refine(n=1, rounds=1), policy, verifier).solve("q").tree
    [branching] = [node for node in range(len(tree)) if tree.num_children(node) == 2]
    assert tree.depth[branching] == 2, "the third of four steps is the weakest"


def test_rounds_end_with_the_budget() -> None:
    solution = engine(
        Refine(n=1, rounds=50), random_policy(), hash_verifier(), budget=Budget(completions=4)
    ).solve("q")
    assert (solution.stop, solution.usage.completions) == ("budget", 4)


@pytest.mark.parametrize("name", ["n", "rounds", "max_steps"])
def test_parameters_are_checked(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"search.{name}=0"):
        Refine(**{name: 0})


def test_needs_a_score_for_every_step() -> None:
    outcome = hash_verifier(kind="outcome")
    with pytest.raises(ConfigurationError, match="search=refine needs a score for every step"):
        engine(Refine(), random_policy(), outcome)
