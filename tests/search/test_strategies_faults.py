"""Faults that search loops in the field have had, tried on every strategy."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.strategies import STRATEGIES
from support.worlds import engine, fraction, hash_verifier, random_policy

from stepsearch import Chain, Problem, SamplingParams, ScoreFailure, VerifierSpec
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.task import MathTask
from stepsearch.search.tree import FAILED
from stepsearch.verifiers.scripted import ScriptedVerifier

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=str)


def step_wise(strategy) -> bool:
    """Whether it decides after every step, so that a failed step is never gone on from."""
    return type(strategy).__name__ not in ("Greedy", "BestOfN", "Refine")


@every_strategy
def test_none_ever_finishes(strategy) -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step("go on ", "step"))
    solution = engine(replace(strategy, max_steps=3), policy, hash_verifier()).solve("q")
    assert (solution.answer, solution.candidates) == (None, ())
    if not isinstance(strategy, Mcts):  # which may end with its simulations
        assert solution.stop == "max_steps"
    assert max(solution.tree.depth) == 3 + getattr(strategy, "lookahead", 0)


@every_strategy
def test_all_finish_at_once(strategy) -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step(f"#### {seed % 3}", "eos"))
    solution = engine(strategy, policy, hash_verifier()).solve("q")
    assert solution.stop == "done"
    assert solution.answer is not None
    assert set(solution.tree.depth[1:]) == {1}


@every_strategy
def test_only_ended_chains_are_candidates_and_each_once(strategy) -> None:
    for i in range(5):
        problem = Problem(text="q", id=str(i))
        solution = engine(strategy, random_policy(eos=0.3), hash_verifier()).solve(problem)
        nodes = [candidate.node for candidate in solution.candidates]
        assert nodes == solution.tree.terminals(), "one vote for each, none for open siblings"
        assert all(solution.tree.num_children(node) == 0 for node in nodes)


@every_strategy
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.5, -0.1])
def test_a_failed_score_is_never_expanded_and_never_wins(strategy, bad: float) -> None:
    def score(chain: Chain) -> list[float]:
        texts = chain.texts
        ends = range(len(texts) - chain.num_new + 1, len(texts) + 1)
        values = [fraction("score", "".join(texts[:k])) for k in ends]
        return [bad if value > 0.6 else value for value in values]

    failures = 0
    for i in range(5):
        problem = Problem(text="q", id=str(i))
        verifier = ScriptedVerifier(score_fn=score)
        solution = engine(strategy, random_policy(), verifier, select="best").solve(problem)
        tree, column = solution.tree, solution.tree.scores["scripted"]
        failed = [node for node in range(1, len(tree)) if column.status[node] == FAILED]
        failures += len(failed)
        if step_wise(strategy):
            assert all(tree.num_children(node) == 0 for node in failed)
        if solution.node is not None and solution.score is not None:
            assert not set(tree.path(solution.node)) & set(failed)
        assert (solution.error is not None) == bool(failed)
    assert failures > 0


@every_strategy
def test_every_score_failing_is_the_verifiers_failure(strategy) -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: ScoreFailure("missing", "no verdict"))
    solution = engine(strategy, random_policy(), verifier).solve("q")
    assert (solution.stop, solution.answer) == ("verifier_failed", None)
    assert solution.error == "missing: no verdict"


def test_a_verifier_that_gives_numbers_is_told_what_belongs_there() -> None:
    class Numbers:
        spec = VerifierSpec(name="numbers")

        def count_tokens(self, chain: Chain) -> int:
            return 0

        async def score(self, chains):
            return [0.5] * len(chains)

    solution = engine(BestOfN(n=2), random_policy(), Numbers()).solve("q")
    assert solution.stop == "verifier_failed"
    assert solution.error == "the verifier gave 0.5 where StepScores belong"


@every_strategy
def test_a_step_cut_by_its_limit_is_not_finished(strategy) -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step("one two three four five ", "step"))
    solution = engine(
        strategy,
        policy,
        hash_verifier(),
        sampling=SamplingParams(max_step_tokens=3),
        task=MathTask(),
    ).solve("q")
    assert {solution.tree.stop(node) for node in solution.tree.leaves()} == {"length"}
    assert (solution.answer, solution.candidates) == (None, ())
    assert set(solution.tree.depth[1:]) == {1}, "nothing goes on from it"


@every_strategy
def test_siblings_have_seeds_of_their_own_and_nobody_elses_generator_is_used(strategy) -> None:
    seeds: list[int] = []

    def propose(chain: Chain, seed: int):
        if not chain.tail:
            seeds.append(seed)
        return scripted_step("go on ", "step") if len(chain) < 3 else scripted_step("#### 1", "eos")

    before = np.random.get_state()
    engine(strategy, ScriptedPolicy(propose), hash_verifier()).solve("q")
    assert len(set(seeds)) == len(seeds)
    assert all(np.array_equal(a, b) for a, b in zip(before, np.random.get_state(), strict=True))


@every_strategy
def test_without_a_verifier(strategy) -> None:
    if type(strategy).__name__ in ("Greedy", "BestOfN"):
        assert engine(strategy, random_policy()).solve("q").answer is not None
    else:
        name = type(strategy).__name__.lower()
        with pytest.raises(ValueError, match=f"search={name} goes by the scores of a verifier"):
            engine(strategy, random_policy(), select="majority")
