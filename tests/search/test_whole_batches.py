"""What is handed over in columns gives the tree that is handed over one by one."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import run_virtual
from support.worlds import (
    engine,
    fingerprint,
    hash_verifier,
    latency,
    random_policy,
    table_policy,
)

from stepsearch.policies.scripted import ScriptedPolicy
from stepsearch.search.arrivals import Arrivals, Candidates
from stepsearch.search.columns import decode_tree, encode_tree
from stepsearch.search.contracts import NewestScores, Sample, Samples, SamplingParams, StepScores
from stepsearch.search.steps import StepColumns
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Budget, Problem, Step

steps = st.builds(
    Step,
    text=st.text(max_size=5),
    token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple),
    stop=st.sampled_from(["step", "eos", "length"]),
    logprob=st.none() | st.floats(-8, 0, width=32),
)


class InColumns:
    """Yields what another policy samples as columns, `size` continuations at a time."""

    def __init__(self, policy, size: int) -> None:
        self.spec = policy.spec
        self._policy, self._size = policy, size

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Samples]:
        found: list[Sample] = [s async for s in self._policy.sample(chains, seeds, params)]
        for start in range(0, len(found), self._size):
            part = found[start : start + self._size]
            columns = StepColumns.of([sample.steps[0] for sample in part])
            yield Samples([sample.request for sample in part], columns, 0, 0)


class ScoresInColumns:
    """Returns what another verifier says as columns."""

    def __init__(self, verifier) -> None:
        self.spec = verifier.spec
        self._verifier = verifier
        self.given: list[Sequence[Chain]] = []

    def count_tokens(self, chain: Chain) -> int | None:
        return self._verifier.count_tokens(chain)

    async def score(self, chains: Sequence[Chain]) -> NewestScores:
        self.given.append(chains)
        scores = await self._verifier.score(chains)
        return NewestScores(
            [s.values[-1] for s in scores], [s.tokens for s in scores], [0] * len(scores)
        )


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("wait", [None, latency(1.0)])
def test_the_same_tree(size: int, wait) -> None:
    problem, strategy = Problem(text="q"), Beam(n=32, width=4)
    aggregation = {"aggregation": "mean", "verifier": hash_verifier(tokens_per_step=3)}
    plain = engine(strategy, random_policy(), **aggregation)
    policy = InColumns(random_policy(latency=wait), size)
    columns = engine(
        strategy,
        policy,
        **aggregation | {"verifier": ScoresInColumns(hash_verifier(tokens_per_step=3))},
    )
    one, other = asyncio.run(plain.asolve(problem)), run_virtual(columns.asolve(problem))[0]
    assert len(one.tree) > 100
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    "budget", [Budget(policy_tokens=90), Budget(policy_tokens=None, verifier_tokens=50)]
)
def test_the_same_tree_under_limits(budget: Budget) -> None:
    problem, strategy = Problem(text="q"), Beam(n=8, width=2)
    found = []
    for policy, verifier in (
        (random_policy(), hash_verifier(tokens_per_step=3)),
        (InColumns(random_policy(), 2), ScoresInColumns(hash_verifier(tokens_per_step=3))),
    ):
        solver = engine(strategy, policy, verifier, budget=budget)
        found.append(fingerprint(asyncio.run(solver.asolve(problem))))
    assert found[0] == found[1]


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_column_with_a_bad_score_fails_that_chain_alone(bad: float) -> None:
    class One:
        def __init__(self, value: float) -> None:
            self.spec, self.value = hash_verifier().spec, value

        def count_tokens(self, chain: Chain) -> int:
            return 0

        async def score(self, chains: Sequence[Chain]) -> NewestScores:
            return NewestScores([self.value, *[0.5] * (len(chains) - 1)])

    solver = engine(Beam(n=4, width=4, max_steps=1), random_policy(eos=1.0), One(bad))
    solution = asyncio.run(solver.asolve("q"))
    column = solution.tree.scores["scripted"]
    assert [column[node] for node in (2, 3, 4)] == [0.5] * 3
    assert column[1] == (bad if 0 <= bad <= 1 else None)
    assert (1 in column.failures) == (not 0 <= bad <= 1)


def test_a_verifier_that_reads_columns_sees_the_newest_steps() -> None:
    verifier = ScoresInColumns(hash_verifier())
    solver = engine(Beam(n=6, width=3), InColumns(random_policy(), 1000), verifier)
    asyncio.run(solver.asolve("q"))
    for chains in verifier.given:
        assert isinstance(chains, Candidates)
        newest = chains.new_steps()
        assert newest.texts == [chain.newest.text for chain in chains]
        assert [newest.step(i) for i in range(len(newest))] == [c.newest for c in chains]
        assert [c.newest for c in chains[1:]] == [c.newest for c in chains][1:]


@pytest.mark.parametrize(
    ("requests", "complaint"),
    [([0, 0], "continuation 0 twice"), ([0, 9], "continuation 9"), ([0], "2 steps for 1")],
)
def test_columns_that_answer_something_else(requests: list[int], complaint: str) -> None:
    class Wrong:
        spec = random_policy().spec

        async def sample(self, chains, seeds, params) -> AsyncIterator[Samples]:
            yield Samples(requests, StepColumns.of([Step(text="a", token_ids=(1,))] * 2))

    solution = asyncio.run(engine(BestOfN(n=2), Wrong()).asolve("q"))
    assert solution.stop == "policy_failed"
    assert complaint in (solution.error or "")


def tear(columns: StepColumns, name: str) -> None:
    """Break one column as a careless backend might."""
    if name == "offset":
        columns.offset[0] = -1
    elif name == "stop_code":
        columns.stop_code[0] = 99
    elif name == "logprob":
        columns.logprob[0] = math.inf
    elif name == "texts":
        columns.texts[0] = None  # type: ignore[call-overload]
    elif name == "num_tokens":
        columns.num_tokens.pop()
    else:
        columns.tokens = columns.tokens.tolist()  # type: ignore[assignment]


@pytest.mark.parametrize("name", StepColumns.__slots__)
def test_torn_columns_are_refused_before_they_reach_the_tree(name: str) -> None:
    class Torn:
        spec = random_policy().spec

        async def sample(self, chains, seeds, params) -> AsyncIterator[Samples]:
            columns = StepColumns.of([Step(text="a", token_ids=(1,))] * 2)
            tear(columns, name)
            yield Samples([0, 1], columns)

    solution = asyncio.run(engine(BestOfN(n=2), Torn()).asolve("q"))
    assert solution.stop == "policy_failed"
    assert "the policy returned" in (solution.error or "")
    assert len(solution.tree) == 1
    assert decode_tree(json.loads(json.dumps(encode_tree(solution.tree)))).question == "q"


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ((Step(text="a", stop="eos"), Step(text="b")), "after one that ended by eos"),
        ((Step(text="a"),) * 9, "9 steps where 1 to 8"),
        ((), "0 steps"),
        ((Step(text="a", token_ids=(2**40,)),), "OverflowError"),
    ],
)
def test_continuations_that_are_none(found: tuple[Step, ...], complaint: str) -> None:
    class Wrong:
        spec = random_policy().spec

        async def sample(self, chains, seeds, params) -> AsyncIterator[Sample]:
            yield Sample(0, found)

    solution = asyncio.run(engine(BestOfN(n=1, max_steps=8), Wrong()).asolve("q"))
    assert solution.stop == "policy_failed"
    assert complaint in (solution.error or "")
    assert len(solution.tree) == 1


@given(st.lists(steps, max_size=30), st.data())
def test_columns_are_steps_one_after_the_other(own, data) -> None:
    columns = StepColumns.of(own)
    assert [columns.step(index) for index in range(len(columns))] == own
    start = data.draw(st.integers(0, len(own)))
    stop = data.draw(st.integers(start, len(own)))
    part = columns.part(start, stop)
    part.append_steps(columns)
    assert [part.step(index) for index in range(len(part))] == own[start:stop] + own


@settings(max_examples=50)
@given(st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=8), st.randoms())
def test_arrivals_come_back_in_order(continuations, random) -> None:
    order = list(range(len(continuations)))
    random.shuffle(order)
    arrivals = Arrivals()
    for child in order:
        arrivals.add(child, StepColumns.of(continuations[child]))
    found = arrivals.order()
    if found is None:
        assert order == sorted(order)
        return
    sorted_arrivals = arrivals.reordered(found)
    flat = [step for continuation in continuations for step in continuation]
    columns = sorted_arrivals.steps
    assert [columns.step(index) for index in range(len(columns))] == flat
    assert list(sorted_arrivals.num_tokens) == [sum(s.num_tokens for s in c) for c in continuations]


@settings(max_examples=60, deadline=None)
@given(
    st.booleans().flatmap(
        lambda apart: st.lists(
            st.tuples(st.integers(0, 40), st.integers(1, 9)),
            min_size=20,
            max_size=40,
            unique_by=(lambda group: group[0]) if apart else None,
        )
    )
)
def test_linking_at_once_is_linking_one_by_one(groups) -> None:
    slow, fast = Tree("q"), Tree("q")
    parents = [ROOT] * 40 + [parent for parent, size in groups for _ in range(size)]
    for parent in parents:
        slow.add(parent, Step(text="s"))
    fast.extend(parents[:40], StepColumns.of([Step(text="s")] * 40))
    fast.extend(parents[40:], StepColumns.of([Step(text="s")] * len(parents[40:])))
    for name in ("parent", "depth", "child_index", "last_child", "prev_sibling"):
        assert getattr(slow, name) == getattr(fast, name), name


def test_scores_in_columns_are_a_sequence_of_scores() -> None:
    scores = NewestScores([0.25, 0.5], [1, 2], None)
    assert scores[1] == StepScores(values=(0.5,), tokens=2, tokens_reused=None)
    assert list(scores[:1]) == [scores[0]]


@pytest.mark.parametrize("n", [1, 2])
def test_one_score_for_several_new_steps_is_a_failure(n: int) -> None:
    class Newest:
        spec = hash_verifier().spec

        def count_tokens(self, chain: Chain) -> int:
            return 0

        async def score(self, chains: Sequence[Chain]) -> NewestScores:
            return NewestScores([0.5] * len(chains))

    table = {"": ["a "], "a ": ["b "], "a b ": ["c #### 1."]}
    solution = asyncio.run(engine(BestOfN(n=n), table_policy(table), Newest()).asolve("q"))
    assert solution.stop == "verifier_failed"
    assert "1 scores for a chain of 3 steps" in (solution.error or "")


def test_a_negative_number_of_tokens_earns_nothing() -> None:
    policy = ScriptedPolicy(lambda chain, seed: Step(text="#### 1", count=-100, stop="eos"))
    solution = asyncio.run(engine(BestOfN(n=2), policy).asolve("q"))
    assert solution.stop == "policy_failed"
    assert "-100 tokens" in (solution.error or "")
