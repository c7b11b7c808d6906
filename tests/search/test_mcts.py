"""Monte Carlo tree search on small worlds where the right tree is known."""

import asyncio
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import run_virtual
from support.worlds import (
    SCORES,
    TABLE,
    engine,
    fingerprint,
    fraction,
    hash_verifier,
    latency,
    outline,
    random_policy,
    table_policy,
    table_verifier,
)

from stepsearch import Budget, Chain, ConfigurationError, Problem, SamplingParams, ScoreFailure
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.strategies.puct import FINISHED
from stepsearch.search.tree import Tree
from stepsearch.verifiers.scripted import ScriptedVerifier

GOLDEN = Path(__file__).parent.parent / "golden"
COLUMNS = ("visits", "value", "prior", "in_flight", "state", "open")


def with_statistics(tree: Tree) -> str:
    """The outline of a tree with visits and value of every node."""
    visits, value = tree.column("visits", int), tree.column("value", float)
    lines = [f"root  N={visits[0]} Q={value[0]:.4f}"]
    order: list[int] = []

    def visit(node: int) -> None:
        for child in tree.children(node):
            order.append(child)
            visit(child)

    visit(0)
    for node, line in zip(order, outline(tree).splitlines(), strict=True):
        lines.append(f"{line}  N={visits[node]} Q={value[node]:.4f}")
    return "\n".join(lines) + "\n"


def test_golden_tree() -> None:
    """Reviewed by hand: with c = 1 and P = 1/2, score = Q + sqrt(N of the parent) / 2 / (1 + N).

    1. The root is expanded: twice "left", A and B, mean 0.8.
    2. A and B tie at 1.3; A comes first: "bad" twice, mean 0.1.
    3. A 0.1 + 0.354 < B 0.8 + 0.707: B is expanded: "good" and "bad", mean 0.5.
    4. A 0.1 + 0.433 < B 0.5 + 0.433; below B "good" 0.9 + 0.5 > "bad" 0.1 + 0.5: both its ends
       are worth 0.7.
    5. A 0.1 + 0.5 < B 0.6 + 0.333; "good" holds nothing more to expand, so "bad": 0.2.
    6. B holds nothing more to expand, so A; its children tie, the first is expanded: 0.2.

    Root: (0.8 + 0.1 + 0.5 + 0.7 + 0.2 + 0.2) / 6; A: (0.1 + 0.2) / 2; B: (0.5 + 0.7 + 0.2) / 3.
    """
    search = Mcts(simulations=6, width=2, exploration=1.0)
    solution = engine(search, table_policy(TABLE), table_verifier(SCORES), seed=1).solve("q")
    assert with_statistics(solution.tree) == (GOLDEN / "mcts.txt").read_text()
    assert solution.answer == "1."
    assert solution.score == pytest.approx(4 * 0.35 / (4 * 0.35 + 4 * 0.2))


def test_exploration_0_is_greedy_on_values() -> None:
    """With max backup it expands the best node of the whole tree until that is a finished one.

    Finished chains count as long as something is left to expand beside them.
    """
    strategy = Mcts(simulations=12, width=3, exploration=0.0, backup="max")
    for seed in range(20):
        solution = engine(strategy, random_policy(eos=0.1), hash_verifier(), seed=seed).solve("q")
        tree = solution.tree
        frontier = [0]
        for first in range(1, len(tree), 3):
            leaf = _best(tree, frontier)
            assert tree.parent[first] == leaf
            frontier.remove(leaf)
            frontier.extend(range(first, first + 3))
        expansions = (len(tree) - 1) // 3
        if expansions < 12:
            best = _best(tree, frontier)
            assert tree.stop(best) == "eos", "the rest of the simulations went to the best chain"
            assert tree.column("visits", int)[best] == 12 - expansions


def _best(tree: Tree, frontier: list[int]) -> int:
    """The best node that may be visited; the earlier one wins a tie."""
    if frontier == [0]:
        return 0
    opened = [node for node in frontier if not tree.is_terminal(node)]
    beside = {step for node in opened for step in (0, *tree.path(tree.parent[node]))}
    choices = [node for node in frontier if node in opened or tree.parent[node] in beside]
    return max(choices, key=lambda node: (tree.scores["scripted"].values[node], -node))


def test_exploration_0_with_mean_backup_follows_the_best_mean() -> None:
    strategy = Mcts(simulations=30, width=3, exploration=0.0)
    tree = engine(strategy, random_policy(eos=0.1), hash_verifier(), seed=4).solve("q").tree
    visits = tree.column("visits", int)
    assert visits[0] == 30
    for node in range(len(tree)):
        children = tree.children(node)
        visited = [child for child in children if visits[child]]
        never = [child for child in children if not visits[child]]
        # A child that was never tried lost against one whose value was higher at some time.
        assert len(visited) > 0 or not never or visits[node] == 1
        if visited:
            assert sum(visits[c] for c in visited) == visits[node] - 1


@settings(max_examples=40, deadline=None)
@given(
    config=st.builds(
        Mcts,
        simulations=st.integers(1, 30),
        width=st.integers(1, 4),
        backup=st.sampled_from(["mean", "max"]),
        rollout=st.booleans(),
        widening=st.sampled_from([0.0, 0.5]),
        parallel=st.sampled_from([1, 4, 16]),
        virtual_loss=st.sampled_from([0.0, 1.0]),
        max_steps=st.sampled_from([3, 40]),
    ),
    tokens=st.integers(1, 200),
    completions=st.none() | st.integers(1, 8),
    verifier_tokens=st.none() | st.integers(1, 80),
    seed=st.integers(0, 99),
)
def test_the_tree_does_not_depend_on_timing_and_the_budget_is_hard(
    config: Mcts, tokens: int, completions: int | None, verifier_tokens: int | None, seed: int
) -> None:
    budget = Budget(policy_tokens=tokens, completions=completions, verifier_tokens=verifier_tokens)
    found = []
    for salt in (None, 1, 2):
        policy = random_policy(latency=None if salt is None else latency(2.0, salt))
        verifier = hash_verifier(
            tokens_per_step=2,
            latency=None if salt is None else _verifier_latency(salt),
        )
        search = engine(
            config,
            policy,
            verifier,
            budget=budget,
            sampling=SamplingParams(max_step_tokens=4, max_tokens=16),
            seed=seed,
        )
        solution, _ = run_virtual(search.asolve("q"))
        usage = solution.usage
        assert usage.policy_tokens <= tokens
        assert completions is None or usage.completions <= completions
        assert verifier_tokens is None or (usage.verifier_tokens or 0) <= verifier_tokens
        columns = [repr(solution.tree.columns[name].data) for name in COLUMNS]
        found.append((fingerprint(solution), columns))
    assert repr(found[0]) == repr(found[1]) == repr(found[2])


def _verifier_latency(salt: int):
    return lambda chain: asyncio.sleep(fraction("verifier", salt, chain.text))


@pytest.mark.parametrize("parallel", [1, 4, 16])
def test_never_more_leaves_at_work_than_asked_for(parallel: int) -> None:
    at_work = most = 0

    class Counting(ScriptedPolicy):
        async def sample(self, chains, seeds, params):
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            async for sample in super().sample(chains, seeds, params):
                yield sample
            at_work -= 1

    def propose(chain: Chain, seed: int):
        return scripted_step(f"{seed}", "step")

    policy = Counting(propose, latency=latency(1.0))
    strategy = Mcts(simulations=200, parallel=parallel, exploration=1.0)
    search = engine(strategy, policy, hash_verifier(), budget=Budget(policy_tokens=None))
    run_virtual(search.asolve("q"))
    assert most == parallel


def test_a_budget_is_spent_to_the_token() -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step(f"a b c{seed % 9} ", "step"))
    solution = engine(
        Mcts(simulations=1000, parallel=4),
        policy,
        hash_verifier(),
        budget=Budget(policy_tokens=1000),
        sampling=SamplingParams(max_step_tokens=3),
    ).solve("q")
    assert solution.usage.policy_tokens == 1000
    assert solution.stop == "budget"


def test_visits_to_a_finished_chain_count_and_cost_nothing() -> None:
    table = {"": ["#### 1.", "on "], "on ": ["#### 2."]}
    scores = {"#### 1.": 0.9, "on ": 0.1, "on #### 2.": 0.5}
    search = Mcts(simulations=9, width=2, exploration=0.0)
    solution = engine(search, table_policy(table), table_verifier(scores), seed=2).solve("q")
    tree = solution.tree
    assert sorted(tree.texts[c] for c in tree.children(0)) == ["#### 1.", "on "]
    finished = tree.texts.index("#### 1.")
    visits, value = tree.column("visits", int), tree.column("value", float)
    assert len(tree) == 3, "the better chain was visited again, the other one never expanded"
    assert visits[finished] == 8
    assert value[0] == pytest.approx((0.5 + 8 * 0.9) / 9)
    assert solution.usage.policy_calls == 2


def test_stops_when_the_tree_is_exhausted() -> None:
    solution = engine(
        Mcts(simulations=10_000, width=2), table_policy(TABLE), table_verifier(SCORES), seed=2
    ).solve("q")
    tree = solution.tree
    assert solution.stop == "done"
    assert all(tree.is_terminal(leaf) for leaf in tree.leaves())
    assert tree.column("visits", int)[0] < 200
    assert tree.column("open", int)[0] == 0


def test_the_depth_limit_ends_a_search_and_says_so() -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step(f"{seed % 100} ", "step"))
    solution = engine(Mcts(width=2, max_steps=3), policy, hash_verifier()).solve("q")
    tree = solution.tree
    assert len(tree) == 1 + 2 + 4 + 8
    assert solution.stop == "max_steps"
    assert solution.answer is None


def test_a_limit_that_nothing_reached_unfinished_is_not_why_it_ended() -> None:
    policy = random_policy(max_depth=3, eos=0)
    solution = engine(Mcts(width=2, max_steps=3), policy, hash_verifier()).solve("q")
    assert len(solution.tree) == 1 + 2 + 4 + 8
    assert solution.stop == "done"


def test_a_failed_score_is_never_expanded_and_adds_nothing() -> None:
    def score(chain: Chain) -> float | ScoreFailure:
        number = fraction("bad", chain.text)
        return math.nan if number < 0.4 else number

    for backup in ("mean", "max"):
        strategy = Mcts(simulations=40, backup=backup)
        verifier = ScriptedVerifier(score_fn=score)
        tree = engine(strategy, random_policy(), verifier, seed=5).solve("q").tree
        visits, value = tree.column("visits", int), tree.column("value", float)
        failed = [n for n in range(1, len(tree)) if tree.scores["scripted"].status[n] == 2]
        assert len(failed) > 5
        assert all(tree.num_children(node) == 0 for node in failed)
        assert all(visits[node] == 0 and math.isnan(value[node]) for node in failed)
        assert not any(value[n] < 0.4 for n in range(len(tree)) if visits[n])


def test_every_score_failing_ends_the_search() -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: ScoreFailure("missing", "no verdict"))
    solution = engine(Mcts(), random_policy(), verifier).solve("q")
    assert solution.stop == "verifier_failed"
    assert len(solution.tree) == 5
    assert solution.error == "missing: no verdict"


def test_one_expansion_that_failed_is_not_the_search_that_failed() -> None:
    table = {"": ["a ", "b "], "a ": ["#### 1."], "b ": ["#### 2."]}
    scores = {"a ": 0.9, "b ": 0.8, "a #### 1.": 0.9, "b #### 2.": math.nan}
    strategy = Mcts(width=2, simulations=100)
    solution = engine(strategy, table_policy(table), table_verifier(scores), seed=2).solve("q")
    assert {solution.tree.texts[c] for c in solution.tree.children(0)} == {"a ", "b "}
    assert solution.stop == "done"
    assert solution.answer == "1."


def test_a_chain_that_was_cut_is_a_dead_end() -> None:
    policy = ScriptedPolicy(
        lambda chain, seed: (
            scripted_step("a b c d e", "step") if seed % 2 else scripted_step("a ", "step")
        )
    )
    tree = (
        engine(
            Mcts(simulations=10),
            policy,
            hash_verifier(),
            sampling=SamplingParams(max_step_tokens=3),
        )
        .solve("q")
        .tree
    )
    cut = [node for node in tree.terminals() if tree.stop(node) == "length"]
    assert cut
    assert not any(tree.column("visits", int)[node] for node in cut)


def test_rollouts_back_up_what_their_ends_are_worth() -> None:
    solution = engine(
        Mcts(simulations=1, width=2, rollout=True), table_policy(TABLE), table_verifier(SCORES)
    ).solve("q")
    tree = solution.tree
    ends = tree.terminals()
    visits, value = tree.column("visits", int), tree.column("value", float)
    scores = [tree.scores["scripted"][end] for end in ends]
    assert len(ends) == visits[0] == 2
    assert value[0] == pytest.approx(sum(filter(None, scores)) / 2)
    state = tree.column("state", int)
    assert all(state[end] == FINISHED for end in ends)


def test_widening_gives_a_node_more_children_as_it_is_visited() -> None:
    tree = (
        engine(
            Mcts(simulations=64, width=2, widening=0.5, exploration=1.0),
            random_policy(eos=0, max_depth=30),
            hash_verifier(),
            budget=Budget(policy_tokens=None),
        )
        .solve("q")
        .tree
    )
    visits = tree.column("visits", int)
    assert tree.num_children(0) > 8
    for node in range(len(tree)):
        assert tree.num_children(node) <= max(2, int(2 * visits[node] ** 0.5))


def test_priors_follow_the_log_probability_per_token() -> None:
    def propose(chain: Chain, seed: int):
        step = scripted_step("a b " if seed % 2 else "a ", "step")
        return type(step)(text=step.text, token_ids=step.token_ids, logprob=-1.0)

    strategy = Mcts(simulations=1, width=4, prior="policy")
    tree = engine(strategy, ScriptedPolicy(propose), hash_verifier(), seed=1).solve("q").tree
    weights = [math.exp(-1.0 / tree.num_tokens[child]) for child in tree.children(0)]
    assert len(set(weights)) == 2
    prior = tree.column("prior", float)
    for child, weight in zip(tree.children(0), weights, strict=True):
        assert prior[child] == pytest.approx(weight / sum(weights))


def test_priors_of_a_policy_that_tells_none_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"search\.prior=uniform"):
        engine(Mcts(prior="policy"), random_policy(), hash_verifier()).solve("q")


def test_cut_short_it_keeps_what_arrived() -> None:
    policy = random_policy(eos=0.3, latency=lambda chain, seed: 1.0 + fraction(seed))
    search = engine(
        Mcts(parallel=4, simulations=1000),
        policy,
        hash_verifier(),
        budget=Budget(policy_tokens=None, seconds=9.0),
    )
    solution, passed = run_virtual(search.asolve(Problem(text="q")))
    assert passed == pytest.approx(9.0)
    assert solution.stop == "budget"
    assert solution.answer is not None
    assert solution.usage.policy_calls == len(solution.tree) - 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"simulations": 0}, "search.simulations=0"),
        ({"width": 0}, "search.width=0"),
        ({"parallel": 0}, "search.parallel=0"),
        ({"max_steps": 0}, "search.max_steps=0"),
        ({"exploration": -1.0}, "search.exploration=-1"),
        ({"exploration": math.nan}, "search.exploration=nan"),
        ({"widening": -0.5}, "search.widening=-0.5"),
        ({"widening": 50.0}, "search.widening=50.0"),
        ({"virtual_loss": math.inf}, "search.virtual_loss=inf"),
        ({"first_play": math.nan}, "search.first_play=nan"),
        ({"prior": "logprob"}, "search.prior='logprob'"),
        ({"backup": "sum"}, "search.backup='sum'"),
    ],
)
def test_parameters_are_checked(settings, named: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Mcts(**settings)
    assert named in str(error.value)


def test_it_needs_a_verifier() -> None:
    with pytest.raises(ConfigurationError, match="search=mcts"):
        Mcts().require(None)


def test_when_every_rollout_was_cut_the_search_ends() -> None:
    policy = ScriptedPolicy(lambda chain, seed: scripted_step(f"a{seed % 7} b\n"))
    search = engine(
        Mcts(simulations=10, width=2, rollout=True, first_play=0.1),
        policy,
        hash_verifier(),
        sampling=SamplingParams(max_tokens=8),
    )
    assert {found.stop for found in asyncio.run(search.asolve("q")).candidates} == {"length"}


def test_widening_adds_a_few_children_at_a_time() -> None:
    search = engine(
        Mcts(simulations=12, width=2, rollout=True, widening=1.0), random_policy(), hash_verifier()
    )
    assert asyncio.run(search.asolve("q")).usage.policy_calls <= 24
