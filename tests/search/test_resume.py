"""A search that is resumed gives what one gives that was never interrupted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import run_virtual
from support.strategies import STRATEGIES
from support.worlds import (
    engine,
    fingerprint,
    fraction,
    hash_verifier,
    latency,
    random_policy,
    scripted_step,
)

from stepsearch import Budget, ConfigurationError, Engine, SamplingParams, Solution, Strategy
from stepsearch.policies.scripted import ScriptedPolicy
from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.provenance import describe
from stepsearch.search.session import Session
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.trace import Trace, decode, encode
from stepsearch.search.tree import ROOT, Chain
from stepsearch.search.types import Step
from stepsearch.verifiers.ensemble import EnsembleVerifier
from stepsearch.verifiers.scripted import ScriptedVerifier

BEAM = Beam(n=8, width=2)
END = {True: "eos", False: "step"}
SAMPLING = SamplingParams(max_step_tokens=5, max_tokens=20)


def make(strategy: Strategy, budget: Budget, *, salt: Any = None, **own: Any) -> Engine:
    policy = random_policy(latency=None if salt is None else latency(2.0, salt))
    verifier = hash_verifier(tokens_per_step=2)
    return engine(strategy, policy, verifier, budget=budget, **({"sampling": SAMPLING} | own))


def saved(search: Engine, solution: Solution) -> Trace:
    """The trace of a solution after it was written and read."""
    return decode(encode(solution, describe(search.settings)))


def tree_of(solution: Solution) -> Any:
    """What must be the same: everything but what was spent, which has its own test."""
    tree = solution.tree
    columns = {name: repr(column.data) for name, column in tree.columns.items()}
    logprob = repr(tree.logprob)
    return repr(fingerprint(solution)[:-1]), columns, logprob, tree.num_whole


def both(strategy: Strategy, small: Budget, large: Budget) -> Iterator[tuple[Solution, Solution]]:
    """Resumed and undisturbed, with and without latency."""
    for salt in (None, 1):
        first = make(strategy, small, salt=salt)
        cut, _ = run_virtual(first.asolve("q"))
        second = make(strategy, large, salt=None if salt is None else salt + 1)
        resumed, _ = run_virtual(second.aresume(saved(first, cut)))
        whole, _ = run_virtual(make(strategy, large).asolve("q"))
        yield resumed, whole


@settings(max_examples=60, deadline=None)
@given(
    strategy=st.sampled_from([*STRATEGIES, Mcts(simulations=30, parallel=16, rollout=True)]),
    small=st.integers(1, 150),
    more=st.integers(0, 150),
    completions=st.none() | st.integers(1, 6),
    verifier_tokens=st.none() | st.integers(1, 100),
)
def test_after_a_smaller_budget_it_is_the_search_with_the_larger_one(
    strategy: Strategy, small: int, more: int, completions: int | None, verifier_tokens: int | None
) -> None:
    budget = Budget(policy_tokens=small, completions=completions, verifier_tokens=verifier_tokens)
    large = Budget(
        policy_tokens=small + more,
        completions=None if completions is None else completions + more // 50,
        verifier_tokens=None if verifier_tokens is None else verifier_tokens + more,
    )
    for resumed, whole in both(strategy, budget, large):
        assert tree_of(resumed) == tree_of(whole)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (Mcts(simulations=9, exploration=1.0), Mcts(simulations=40, exploration=1.0)),
        (Mcts(simulations=9, parallel=4), Mcts(simulations=50, parallel=4)),
        (BestOfN(n=3), BestOfN(n=8)),
    ],
)
def test_a_longer_search_goes_on_from_a_shorter_one(short: Strategy, long: Strategy) -> None:
    budget = Budget(policy_tokens=None)
    first = make(short, budget)
    solution = first.solve("q")
    assert solution.tree.num_whole is None
    calls = solution.usage.policy_calls
    second = make(long, budget)
    resumed = second.resume(saved(first, solution))
    whole = make(long, budget).solve("q")
    assert tree_of(resumed) == tree_of(whole)
    assert resumed.usage.policy_tokens == whole.usage.policy_tokens
    assert resumed.usage.policy_calls == whole.usage.policy_calls > calls
    assert resumed.usage.verifier_calls == whole.usage.verifier_calls


@pytest.mark.parametrize("incremental", [True, False])
def test_members_that_were_not_asked_get_no_column(incremental: bool) -> None:
    def search(tokens: int) -> Engine:
        guide = hash_verifier(name="guide", incremental=incremental)
        members = {"guide": guide, "other": hash_verifier(name="other")}
        ensemble = EnsembleVerifier(members, guides=["guide"])
        return engine(
            Dvts(n=6, width=2), random_policy(), ensemble, budget=Budget(policy_tokens=tokens)
        )

    cut = search(8).solve("q")
    resumed = search(13).resume(saved(search(8), cut))
    whole = search(13).solve("q")
    assert resumed.tree.scores.keys() == whole.tree.scores.keys()
    assert tree_of(resumed) == tree_of(whole)


def test_what_the_saved_search_has_is_not_asked_for_again() -> None:
    class Counting:
        def __init__(self) -> None:
            self.inner, self.asked = random_policy(), 0
            self.spec = self.inner.spec

        def sample(self, chains: Any, seeds: Any, params: Any) -> Any:
            self.asked += len(seeds)
            return self.inner.sample(chains, seeds, params)

    counts = []
    budget = Budget(policy_tokens=None)
    trace = None
    for simulations in (10, 20, 20):
        policy = Counting()
        search = engine(
            Mcts(simulations=simulations, exploration=1.0), policy, hash_verifier(), budget=budget
        )
        solution = search.solve("q") if trace is None else search.resume(trace)
        trace = saved(search, solution)
        counts.append(policy.asked)
        assert solution.usage.policy_calls == sum(counts)
    assert counts[0] > 0
    assert counts[1] > 0
    assert counts[2] == 0


def test_usage_counts_what_was_thrown_away() -> None:
    """Sampled twice: the continuations of the saved search from the first one that was cut."""
    strategy = Mcts(exploration=1.0)
    first = make(strategy, Budget(policy_tokens=63))
    cut = first.solve("q")
    assert cut.stop == "budget"
    kept = cut.tree.num_whole
    assert kept is not None
    thrown_away = sum(cut.tree.num_tokens[kept:])
    large = Budget(policy_tokens=200)
    resumed = make(strategy, large).resume(saved(first, cut))
    whole = make(strategy, large).solve("q")
    assert resumed.usage.policy_tokens == whole.usage.policy_tokens + thrown_away
    assert sum(resumed.tree.num_tokens) <= 200


def test_after_an_interruption() -> None:
    budget = Budget(policy_tokens=None, seconds=3.0)
    for strategy in (Mcts(parallel=4), Beam(n=8, width=2)):
        first = make(strategy, budget, salt=1)
        cut, _ = run_virtual(first.asolve("q"))
        assert cut.stop == "budget"
        unlimited = replace(budget, seconds=None)
        resumed, _ = run_virtual(make(strategy, unlimited, salt=2).aresume(saved(first, cut)))
        assert tree_of(resumed) == tree_of(make(strategy, unlimited).solve("q"))


def test_an_interrupted_resumption_has_spent_no_less() -> None:
    """Saved scores that it had not come to enter were paid for all the same."""

    def search(tokens: int, latency: float) -> Engine:
        verifier = ScriptedVerifier(
            score_fn=lambda chain: 0.5, latency=lambda chain: asyncio.sleep(latency)
        )
        budget = Budget(policy_tokens=tokens, seconds=5)
        return engine(BEAM, random_policy(), verifier, budget=budget, sampling=SAMPLING)

    first = search(40, 0.1)
    cut, _ = run_virtual(first.asolve("q"))
    assert cut.tree.num_whole is not None
    resumed, seconds = run_virtual(search(200, 20).aresume(saved(first, cut)))
    assert (resumed.stop, seconds) == ("budget", 5)
    assert cut.tree.num_whole < len(resumed.tree)
    assert resumed.usage.verifier_calls == cut.usage.verifier_calls == len(cut.tree) - 1


def test_resumed_twice() -> None:
    budgets = [Budget(policy_tokens=tokens) for tokens in (40, 90, 200)]
    strategy = Mcts(parallel=4)
    search = make(strategy, budgets[0])
    solution = search.solve("q")
    for budget in budgets[1:]:
        trace, search = saved(search, solution), make(strategy, budget)
        solution = search.resume(trace)
    assert tree_of(solution) == tree_of(make(strategy, budgets[-1]).solve("q"))


@pytest.mark.parametrize(
    ("strategy", "budget", "own", "named"),
    [
        (Mcts(exploration=1.0), Budget(), {}, "search differs"),
        (Beam(), Budget(), {}, "search differs"),
        (Mcts(simulations=5), Budget(), {}, "search.simulations=5"),
        (Mcts(), Budget(policy_tokens=10), {}, "budget.policy_tokens=10"),
        (Mcts(), Budget(completions=10), {}, "budget.completions=10"),
        (Mcts(), Budget(), {"seed": 3}, "seed differs"),
        (Mcts(), Budget(), {"sampling": SamplingParams(temperature=1.0)}, "sampling differs"),
        (Mcts(), Budget(), {"aggregation": "min"}, "aggregation differs"),
    ],
)
def test_what_would_be_another_search_is_refused(
    strategy: Strategy, budget: Budget, own: dict[str, Any], named: str
) -> None:
    first = make(Mcts(), Budget())
    trace = saved(first, first.solve("q"))
    with pytest.raises(ConfigurationError, match=named):
        make(strategy, budget, **own).resume(trace)


def test_a_beam_does_not_grow() -> None:
    first = make(Beam(n=4), Budget())
    trace = saved(first, first.solve("q"))
    with pytest.raises(ConfigurationError, match="none of its settings may change"):
        make(Beam(n=8), Budget()).resume(trace)


def test_a_trace_of_an_older_version_is_refused() -> None:
    first = make(Mcts(), Budget())
    data = json.loads(encode(first.solve("q"), describe(first.settings)))
    data["version"] = 1
    with pytest.raises(Exception, match="version 1"):
        decode(json.dumps(data))


@pytest.mark.parametrize(
    ("incremental", "share_failed"), [(True, 0.0), (False, 0.0), (False, 0.15)]
)
def test_twins_keep_their_own_scores(incremental: bool, share_failed: float) -> None:
    """Siblings of the same text, of which lookahead has scored some in the middle of a chain."""

    def propose(chain: Chain, seed: int) -> Step:
        ends = len(chain) >= 5 or fraction("end", chain.text, seed) < 0.2
        word = f"w{seed % 2}"
        return scripted_step(f"{word} #### {seed % 4}" if ends else f"{word}\n", END[ends])

    def judge(chain: Chain) -> list[float] | ScoreFailure:
        if fraction("fails", chain.text) < share_failed:
            return ScoreFailure("missing", "gone")
        count = chain.num_new if incremental else len(chain)
        ends = range(len(chain) - count, len(chain))
        whole = "" if incremental else chain.text
        return [fraction("".join(chain.texts[: k + 1]), whole) for k in ends]

    for seed in range(20):
        search = engine(
            Beam(n=4, width=2, lookahead=2),
            ScriptedPolicy(propose),
            ScriptedVerifier(score_fn=judge, incremental=incremental),
            seed=seed,
        )
        solution = search.solve("q")
        assert tree_of(search.resume(saved(search, solution))) == tree_of(solution)


def test_a_score_that_depends_on_the_end_is_not_that_of_a_twin() -> None:
    """The same text twice, of which the budget cuts the second: only finished chains are judged."""

    class Twice:
        continues = True

        async def run(self, session: Session) -> None:
            await session.expand([ROOT], 1)
            await session.expand([ROOT], 1, until="end", max_steps=2)

    def propose(chain: Chain, seed: int) -> Step:
        return scripted_step("#### 1", "eos") if len(chain) else scripted_step("w w w w\n")

    prm = ScriptedVerifier(score_fn=lambda chain: 0.9, name="prm")
    orm = ScriptedVerifier(score_fn=lambda chain: 0.1, name="orm", kind="outcome")
    search = engine(
        Twice(),
        ScriptedPolicy(propose),
        EnsembleVerifier([prm, orm]),
        budget=Budget(policy_tokens=8),
        sampling=SamplingParams(max_tokens=16, max_step_tokens=8),
    )
    solution = search.solve("q")
    tree = solution.tree
    assert tree.texts[1] == tree.texts[2]
    assert [tree.stop(node) for node in (1, 2)] == ["step", "budget"]
    column = tree.scores[solution.verifier.name]
    assert column[1] != column[2]
    assert tree_of(search.resume(saved(search, solution))) == tree_of(solution)
