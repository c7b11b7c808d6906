"""Adaptive stopping: the same answer when it is certain, the same search whatever the timing."""

import asyncio
import itertools
import math
from bisect import bisect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import run_virtual
from support.strategies import STRATEGIES
from support.worlds import engine, fingerprint, fraction, hash_verifier, latency, random_policy

from stepsearch import Budget, Chain, ConfigurationError, Problem, SamplingParams, solve
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.contracts import Bounded
from stepsearch.search.poll import Poll, probability_of_lead
from stepsearch.search.select import SELECTIONS, choose
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.strategies.greedy import Greedy
from stepsearch.search.strategies.refine import Refine
from stepsearch.search.task import ExactTask
from stepsearch.search.tree import Tree
from stepsearch.search.types import Candidate
from stepsearch.verifiers.scripted import ScriptedVerifier

BOUNDED = [strategy for strategy in STRATEGIES if isinstance(strategy, Bounded)]


def urn(shares: dict[str, float], **more) -> ScriptedPolicy:
    """Answers at once, each with its probability."""

    edges = list(itertools.accumulate(shares.values()))

    def propose(chain: Chain, seed: int):
        index = min(bisect(edges, fraction("answer", seed)), len(edges) - 1)
        return scripted_step(f"so the answer is #### {list(shares)[index]}", "eos")

    return ScriptedPolicy(propose, **more)


def exact_lead(first: int, second: int) -> float:
    """P(Beta(a + 1, b + 1) > 1/2) is the chance of at most `first` heads in a + b + 1 tosses."""
    tosses = first + second + 1
    return sum(math.comb(tosses, heads) for heads in range(first + 1)) / 2**tosses


@given(first=st.integers(0, 300), second=st.integers(0, 300))
def test_the_chance_of_a_lead(first: int, second: int) -> None:
    assert probability_of_lead(first, second) == pytest.approx(exact_lead(first, second), abs=1e-9)


def test_four_of_four_votes_are_likely_three_are_not() -> None:
    assert probability_of_lead(3, 0) == pytest.approx(15 / 16)
    assert probability_of_lead(4, 0) == pytest.approx(31 / 32)
    policy = urn({"1": 1.0})
    likely = engine(BestOfN(n=20), policy, select="majority", settle="likely").solve("q")
    assert (likely.stop, len(likely.candidates), likely.chains_saved) == ("settled", 4, 16)
    certain = engine(BestOfN(n=20), policy, select="majority", settle="certain").solve("q")
    assert (certain.stop, len(certain.candidates), certain.chains_saved) == ("settled", 11, 9)


def test_off_by_default_and_done_where_nothing_is_saved() -> None:
    policy = urn({"1": 1.0})
    full = engine(BestOfN(n=6), policy, select="majority").solve("q")
    assert (full.stop, len(full.candidates), full.chains_saved) == ("done", 6, None)
    last = engine(BestOfN(n=2), policy, select="majority", settle="likely").solve("q")
    assert (last.stop, len(last.candidates), last.chains_saved) == ("done", 2, None)


@settings(max_examples=150, deadline=None)
@given(
    strategy=st.sampled_from([*BOUNDED, BestOfN(n=15), Refine(n=3, rounds=4)]),
    select=st.sampled_from(SELECTIONS),
    eos=st.sampled_from([0.2, 0.6]),
    branching=st.integers(1, 4),
    ones=st.sampled_from([0.0, 0.3]),
    failing=st.sampled_from([0.0, 0.3]),
    tokens=st.none() | st.integers(5, 200),
    seed=st.integers(0, 999),
)
def test_what_is_certain_is_the_answer_of_the_full_search(
    strategy, select, eos, branching, ones, failing, tokens, seed
) -> None:
    def score(chain: Chain) -> float:
        if fraction("fails", chain.text) < failing:
            return math.nan
        return 1.0 if fraction("one", chain.text) < ones else fraction("score", chain.text)

    def search(settle):
        return engine(
            strategy,
            random_policy(branching=branching, eos=eos, max_depth=3),
            ScriptedVerifier(score_fn=score),
            select=select,
            settle=settle,
            seed=seed,
            budget=Budget(policy_tokens=tokens),
            sampling=SamplingParams(max_step_tokens=8, max_tokens=24),
        ).solve("q")

    full, short = search(None), search("certain")
    assert short.answer == full.answer
    assert short.usage.policy_tokens <= full.usage.policy_tokens
    if short.stop != "settled":
        assert fingerprint(short) == fingerprint(full)
    elif isinstance(strategy, BestOfN):
        count = len(short.tree)
        assert full.tree.texts[:count] == short.tree.texts, "the full tree's beginning"


@settings(max_examples=300, deadline=None)
@given(
    votes=st.lists(
        st.tuples(
            st.sampled_from("112345"), st.none() | st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0])
        ),
        max_size=12,
    ),
    to_come=st.integers(0, 6),
    select=st.sampled_from(SELECTIONS),
)
def test_the_worst_that_may_come_does_not_change_a_closed_poll(votes, to_come, select) -> None:
    """All that is to come, and what still lacks a score, goes to one other answer in full."""
    tree, values = Tree("q"), {}
    poll = Poll(
        tree=tree,
        task=ExactTask(),
        select=select,
        settle="certain",
        confidence=0.95,
        highest=1.0,
        max_chains=len(votes) + to_come,
    )

    def add(answer: str, value: float | None) -> None:
        values[tree.add(0, scripted_step(f"#### {answer}", "eos"))] = value

    def chosen() -> str | None:
        found = [
            Candidate(node=n, answer=tree.texts[n][5:], score=v, stop="eos")
            for n, v in values.items()
        ]
        candidate = choose(found, select, ExactTask().equal).candidate
        return candidate and candidate.answer

    for answer, value in votes:
        add(answer, value)
    asyncio.run(poll.update(values.__getitem__))
    if not poll.closed:
        return
    leader = chosen()
    for other in "12345":
        if other != leader:
            before = dict(values)
            count = len(tree)
            for node, value in values.items():
                values[node] = 1.0 if value is None and tree.texts[node][5:] == other else value
            for _ in range(to_come):
                add(other, 1.0)
            assert chosen() == leader
            values.clear()
            values.update({n: v for n, v in before.items() if n < count})


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 9),
    shares=st.sampled_from([{"1": 0.8, "2": 0.2}, {"1": 0.5, "2": 0.3, "3": 0.2}]),
    seed=st.integers(0, 999),
)
def test_not_one_chain_more_than_certainty_takes(n: int, shares, seed: int) -> None:
    """By trying every way in which the votes could have gone on."""
    search = engine(
        BestOfN(n=n), urn(shares), select="majority", settle="certain", seed=seed
    ).solve("q")
    votes = [candidate.answer for candidate in search.candidates]

    def leader(votes: list[str]) -> set[str]:
        return {a for a in votes if votes.count(a) == max(map(votes.count, votes))}

    def is_open(known: list[str]) -> bool:
        rests = itertools.product(["1", "2", "3", "new"], repeat=min(n - len(known), 5))
        leaders = [leader([*known, *rest]) for rest in rests]
        return len(set().union(*leaders)) > 1

    assert not (len(votes) < n and is_open(votes))
    if n - len(votes) < 5 and len(votes) > 1:
        assert is_open(votes[:-1])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("settle", ["certain", "likely"])
def test_the_same_whatever_the_timing(strategy, settle) -> None:
    select = "weighted" if settle == "likely" else "best"

    def search(salt, problem):
        waits = None if salt is None else latency(5.0, salt)
        verifier = ScriptedVerifier(
            score_fn=lambda chain: min(1.0, 0.5 + fraction("score", chain.text))
        )
        return run_virtual(
            engine(
                strategy,
                random_policy(branching=2, eos=0.5, latency=waits),
                verifier,
                select=select,
                settle=settle,
                confidence=0.7,
                budget=Budget(policy_tokens=120),
                sampling=SamplingParams(max_step_tokens=8, max_tokens=24),
            ).asolve(problem)
        )[0]

    stops = set()
    for i in range(6):
        problem = Problem(text="q", id=str(i))
        at_once = search(None, problem)
        assert at_once.usage.policy_tokens <= 120
        stops.add(at_once.stop)
        for salt in (1, 2):
            assert fingerprint(search(salt, problem)) == fingerprint(at_once)
    if strategy != Greedy() and getattr(strategy, "window", 1) == 1:
        assert "settled" in stops


@pytest.mark.parametrize(
    ("settle", "least", "agree"), [("certain", 0.25, 1.0), ("likely", 0.7, 0.98)]
)
def test_what_it_saves(settle, least: float, agree: float) -> None:
    """100 questions of mixed difficulty, 40 votes each."""
    problems = [Problem(text="q", id=str(i)) for i in range(100)]
    tokens = {None: 0, settle: 0}
    answers: dict[object, list[str | None]] = {None: [], settle: []}
    for i, problem in enumerate(problems):
        first = 0.5 + 0.005 * i
        policy = urn({"1": first, "2": (1 - first) / 2, "3": (1 - first) / 2})
        for rule in (None, settle):
            solution = engine(BestOfN(n=40), policy, select="majority", settle=rule).solve(problem)
            tokens[rule] += solution.usage.policy_tokens
            answers[rule].append(solution.answer)
    same = sum(a == b for a, b in zip(answers[None], answers[settle], strict=True))
    assert same >= agree * 100
    assert 1 - tokens[settle] / tokens[None] > least


def test_waves_take_few_round_trips() -> None:
    policy = urn({"1": 0.7, "2": 0.3}, latency=lambda chain, seed: 1.0)
    plenty = Budget(policy_tokens=None)
    search = engine(BestOfN(n=64), policy, select="majority", settle="certain", budget=plenty)
    solution, passed = run_virtual(search.asolve("q"))
    assert (solution.stop, passed) == ("settled", 3), "waves of 33, 8 and 5"
    assert solution.chains_saved == 18
    search = engine(
        BestOfN(n=64), policy, hash_verifier(), select="best", settle="certain", budget=plenty
    )
    solution, passed = run_virtual(search.asolve("q"))
    assert (solution.stop, passed) == ("done", 7), "waves of 1, 1, 2, 4, 8, 16, 32"


def test_a_strategy_is_only_told_that_it_is_over() -> None:
    """A beam stops between its steps; what was under way enters."""
    policy = random_policy(branching=1, eos=0.5, max_depth=8)
    for strategy in (Beam(n=8, width=2), Dvts(n=8, width=2)):
        full = engine(strategy, policy, hash_verifier(), select="majority").solve("q")
        short = engine(
            strategy, policy, hash_verifier(), select="majority", settle="likely", confidence=0.8
        ).solve("q")
        assert short.answer == full.answer
        assert short.stop in ("settled", "done")
        assert full.tree.texts[: len(short.tree)] == short.tree.texts


def test_equal_answers_are_one() -> None:
    """Texts that differ and are equal for the task are counted as selection counts them."""

    class Numbers(ExactTask):
        def equal(self, a: str, b: str) -> bool:
            return float(a) == float(b)

    policy = urn({"1": 0.3, "1.0": 0.4, "1.00": 0.3})
    search = engine(
        BestOfN(n=20), policy, select="majority", settle="likely", task=Numbers()
    ).solve("q")
    assert len(search.candidates) == 4


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"settle": "soon"}, "settle='soon' is not one of certain, likely, or null"),
        ({"settle": "likely", "confidence": 1.0}, "confidence=1.0 must be a number between"),
        ({"settle": "likely", "confidence": 0.5}, "confidence=0.5 must be a number between"),
        ({"settle": "likely", "select": "best"}, "settle='likely' goes by shares of votes"),
        ({"settle": "certain", "select": "majority"}, "search Beam does not tell"),
        ({"settle": "likely", "vote_weight": 0.5}, "settle='likely' adds up the scores"),
        ({"settle": "certain", "vote_weight": 2}, "settle='certain' adds up the scores"),
    ],
)
def test_settings_are_checked(settings_, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        engine(Beam(), random_policy(), hash_verifier(), **settings_)


def test_from_the_face() -> None:
    policy = urn({"1": 1.0})
    settings_ = {"policy": policy, "verifier": "none", "task": "exact", "settle": "likely"}
    solution = solve("q", search="best_of_n", **settings_)
    assert (solution.stop, solution.chains_saved) == ("settled", 4)
    sure = solve("q", search="best_of_n", **settings_, overrides=["confidence=0.98"])
    assert (sure.stop, sure.chains_saved) == ("settled", 3)


@pytest.mark.parametrize("limit", ["flops", "verifier_tokens"])
def test_certainty_needs_a_limit_that_scores_do_not_share(limit: str) -> None:
    with pytest.raises(ConfigurationError, match=r"limit budget\.policy_tokens instead"):
        engine(
            BestOfN(n=4),
            random_policy(),
            hash_verifier(),
            settle="certain",
            budget=Budget(**{limit: 100}),
        )
