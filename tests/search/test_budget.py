"""Budgets are hard, and what is admitted does not depend on timing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import run_virtual
from support.strategies import STRATEGIES
from support.worlds import (
    engine,
    fingerprint,
    hash_verifier,
    latency,
    random_policy,
    table_policy,
)

from stepsearch import Budget, ConfigurationError, Problem, SamplingParams
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.greedy import Greedy

SAMPLING = SamplingParams(max_step_tokens=4, max_tokens=16)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 150),
    completions=st.none() | st.integers(1, 6),
    verifier_tokens=st.none() | st.integers(1, 60),
    flops=st.none() | st.integers(1, 3000),
    name=st.text(min_size=1, max_size=3).filter(str.strip),
)
def test_never_exceeded_and_independent_of_timing(
    strategy, tokens, completions, verifier_tokens, flops, name
) -> None:
    budget = Budget(
        policy_tokens=tokens,
        completions=completions,
        verifier_tokens=verifier_tokens,
        flops=flops,
    )
    results = []
    for salt in (None, 1, 2):
        policy = random_policy(
            num_parameters=3, latency=None if salt is None else latency(2.0, salt)
        )
        verifier = hash_verifier(tokens_per_step=2, num_parameters=5)
        search = engine(strategy, policy, verifier, budget=budget, sampling=SAMPLING)
        solution, _ = run_virtual(search.asolve(Problem(text=name)))
        usage = solution.usage
        assert usage.policy_tokens <= tokens
        assert completions is None or usage.completions <= completions
        assert verifier_tokens is None or usage.verifier_tokens <= verifier_tokens
        assert flops is None or usage.flops <= flops
        results.append(fingerprint(solution))
    assert results[0] == results[1] == results[2]


def test_children_wait_for_what_earlier_ones_give_back() -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step("a b #### 1", "eos"))
    solution = engine(
        BestOfN(n=10),
        policy,
        budget=Budget(policy_tokens=40),
        sampling=SamplingParams(max_tokens=16),
    ).solve("q")
    assert solution.usage.completions == 10, "10 chains of 4 tokens fit into 40"
    assert solution.usage.policy_tokens == 40


def test_the_last_child_gets_the_rest() -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step("a b #### 1", "eos"))
    solution = engine(
        BestOfN(n=3),
        policy,
        budget=Budget(policy_tokens=10),
        sampling=SamplingParams(max_tokens=4),
    ).solve("q")
    assert solution.usage.policy_tokens == 10
    assert [solution.tree.stop(n) for n in solution.tree.leaves()] == ["eos", "eos", "budget"]
    assert solution.stop == "budget"
    assert solution.answer == "1"


def test_the_limit_of_a_chain_is_not_the_budget() -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step("a b c d e f", "eos"))
    solution = engine(
        BestOfN(n=2),
        policy,
        budget=Budget(policy_tokens=100),
        sampling=SamplingParams(max_tokens=4),
    ).solve("q")
    assert {solution.tree.stop(n) for n in solution.tree.leaves()} == {"length"}
    assert solution.stop == "done"


def test_seconds_end_a_search_with_its_best_answer() -> None:
    policy = random_policy(eos=0.3, latency=lambda chain, seed: 1.0 + len(chain))
    search = engine(
        Beam(n=16, width=2),
        policy,
        hash_verifier(),
        budget=Budget(policy_tokens=None, seconds=4.5),
    )
    solution, passed = run_virtual(search.asolve("q"))
    assert passed == pytest.approx(4.5)
    assert solution.stop == "budget"
    assert solution.answer is not None


def test_a_limit_on_what_nobody_counts_is_refused() -> None:
    silent = hash_verifier(tokens_per_step=None)
    search = engine(Beam(), random_policy(), silent, budget=Budget(verifier_tokens=10))
    with pytest.raises(ConfigurationError, match="verifier_tokens"):
        search.solve("q")
    unknown = random_policy(num_parameters=None)
    search = engine(Beam(), unknown, hash_verifier(), budget=Budget(flops=10))
    with pytest.raises(ConfigurationError, match=r"budget\.flops"):
        search.solve("q")


@pytest.mark.parametrize("limit", [0, -3])
def test_limits_must_be_positive(limit: int) -> None:
    with pytest.raises(ValueError, match=r"budget\.policy_tokens"):
        Budget(policy_tokens=limit)


def test_an_allotment_that_was_not_needed_is_no_limit() -> None:
    """A chain that ended by itself, within less than the longest chain, was not stopped."""
    policy = table_policy({"": ["one two three #### 1."]})
    solver = engine(
        Greedy(), policy, budget=Budget(policy_tokens=100), sampling=SamplingParams(max_tokens=500)
    )
    solution, _ = run_virtual(solver.asolve("q"))
    assert solution.usage.policy_tokens < 100
    assert solution.stop == "done"
    assert solution.tree.num_whole is None
