"""Beam search on small worlds where the right tree is known."""

import math
from pathlib import Path

import pytest
from support.worlds import (
    SCORES,
    TABLE,
    engine,
    hash_verifier,
    outline,
    random_policy,
    table_policy,
    table_verifier,
)

from stepsearch import Budget, ConfigurationError, SamplingParams, ScoreFailure
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.task import MathTask
from stepsearch.verifiers.scripted import ScriptedVerifier

GOLDEN = Path(__file__).parent.parent / "golden"


def test_golden_tree() -> None:
    beam = Beam(n=4, width=2, max_steps=5)
    solution = engine(beam, table_policy(TABLE), table_verifier(SCORES), seed=8).solve("q")
    # Two places. After the second step they go to "good" (0.90) and the first "9." (0.85), which is
    # finished and keeps its place, so that only one of the ends of "good" is kept.
    assert outline(solution.tree) == (GOLDEN / "beam.txt").read_text()
    assert solution.stop == "done"
    assert solution.answer == "9."
    assert solution.score == pytest.approx((0.85 + 0.85) / (0.85 + 0.85 + 0.7 + 0.7))


def test_beam_of_one_when_n_is_smaller_than_width() -> None:
    beam = Beam(n=2, width=4)
    assert beam.places == 1
    solution = engine(beam, random_policy(eos=0), hash_verifier()).solve("q")
    expanded = {p for p in solution.tree.parent if p >= 0}
    depths = [solution.tree.depth[node] for node in expanded]
    assert sorted(depths) == list(range(max(depths) + 1)), "one node per depth is expanded"


@pytest.mark.parametrize("n", [1, 3, 8])
def test_finished_chains_are_neither_expanded_nor_copied(n: int) -> None:
    solution = engine(Beam(n=n, width=2), random_policy(eos=0.4), hash_verifier()).solve("q")
    tree = solution.tree
    for node in range(1, len(tree)):
        if tree.is_terminal(node):
            assert tree.num_children(node) == 0
    nodes = [c.node for c in solution.candidates]
    assert len(set(nodes)) == len(nodes), "one vote per sampled chain"


def test_all_finish_at_once() -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step(f"#### {seed % 3}", "eos"))
    solution = engine(Beam(n=6, width=2), policy, hash_verifier()).solve("q")
    assert len(solution.tree) == 7
    assert solution.stop == "done"
    assert solution.answer is not None


def test_none_ever_finishes() -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step("go on ", "step"))
    solution = engine(Beam(n=4, width=2, max_steps=3), policy, hash_verifier()).solve("q")
    assert solution.answer is None
    assert solution.stop == "max_steps"
    assert max(solution.tree.depth) == 3


def test_a_step_cut_by_its_limit_is_not_finished() -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step("one two three four five ", "step"))
    solution = engine(
        Beam(n=4, width=2),
        policy,
        hash_verifier(),
        sampling=SamplingParams(max_step_tokens=3),
        task=MathTask(),
    ).solve("q")
    assert {solution.tree.stop(n) for n in solution.tree.leaves()} == {"length"}
    assert solution.answer is None
    assert solution.candidates == ()
    assert solution.usage.policy_tokens == 12


def test_nan_is_never_ranked() -> None:
    scores = {**SCORES, "left ": math.nan}
    solution = engine(Beam(n=8, width=8), table_policy(TABLE), table_verifier(scores)).solve("q")
    tree = solution.tree
    failed = [n for n in range(1, len(tree)) if tree.scores["scripted"].status[n] == 2]
    assert failed
    assert all(tree.num_children(n) == 0 for n in failed)
    assert solution.answer == "9."
    assert solution.error is not None
    assert "nan" in solution.error


def test_every_score_failing_ends_the_search() -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: ScoreFailure("missing", "no verdict"))
    solution = engine(Beam(), random_policy(), verifier).solve("q")
    assert solution.stop == "verifier_failed"
    assert solution.answer is None
    assert solution.error == "missing: no verdict"


def test_lookahead_ranks_by_the_end_of_the_rollout_and_is_charged() -> None:
    table = {"": ["left ", "right "], "left ": ["#### 1."], "right ": ["#### 2."]}
    scores = {"left ": 0.9, "right ": 0.1, "left #### 1.": 0.0, "right #### 2.": 1.0}
    short = engine(Beam(n=4, width=4), table_policy(table), table_verifier(scores)).solve("q")
    far = engine(
        Beam(n=4, width=4, lookahead=1), table_policy(table), table_verifier(scores)
    ).solve("q")
    assert short.answer == "1."
    assert far.answer == "2."
    assert far.usage.policy_tokens > short.usage.policy_tokens
    first = far.tree.children(0)
    assert all(far.tree.num_children(n) >= 1 for n in first), "every candidate was rolled out"


def test_one_step_to_the_end_is_best_of_n() -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step(f"#### {seed % 7}", "eos"))
    beam = engine(Beam(n=9, width=9, max_steps=1), policy, hash_verifier()).solve("q")
    best = engine(BestOfN(n=9), policy, hash_verifier()).solve("q")
    assert outline(beam.tree) == outline(best.tree)
    assert (beam.answer, beam.score) == (best.answer, best.score)


def test_budget_ends_the_search_with_the_finished_answer() -> None:
    sampling = SamplingParams(max_step_tokens=5)
    budget = Budget(policy_tokens=40)
    solution = engine(
        Beam(n=4, width=2), random_policy(eos=0), hash_verifier(), budget=budget, sampling=sampling
    ).solve("q")
    assert solution.usage.policy_tokens <= 40
    assert solution.stop == "budget"


@pytest.mark.parametrize("setting", ["n", "width", "max_steps"])
def test_parameters_are_checked(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=f"search.{setting}=0"):
        Beam(**{setting: 0})
