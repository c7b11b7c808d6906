"""Searches that are cut short or go wrong keep what they have, and go wrong alone."""

import asyncio
import collections
import math
import multiprocessing
import sys
import time
from typing import Any

import pytest
from support.clock import run_virtual
from support.worlds import (
    engine,
    fingerprint,
    fraction,
    hash_verifier,
    latency,
    random_policy,
    table_policy,
)

from stepsearch import (
    Budget,
    Chain,
    ConfigurationError,
    Problem,
    Sample,
    SamplingParams,
    ScoreFailure,
    StepScores,
    VerifierSpec,
)
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.background import background
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.task import ExactTask
from stepsearch.search.tree import ROOT
from stepsearch.search.types import Step
from stepsearch.verifiers.ensemble import EnsembleVerifier
from stepsearch.verifiers.scripted import ScriptedVerifier


class Plan:
    """A strategy made of a function."""

    def __init__(self, run) -> None:
        self.run = run


LONG = Budget(policy_tokens=None, seconds=10)


def slow_eighth(chain: Chain, seed: int) -> float:
    return 50.0 if seed % 8 == 0 else 1.0


def test_seconds_keep_what_has_arrived() -> None:
    policy = random_policy(latency=slow_eighth)
    search = engine(BestOfN(n=32), policy, hash_verifier(), budget=LONG)
    solution, passed = run_virtual(search.asolve("q"))
    assert (solution.stop, passed) == ("budget", 10)
    assert solution.answer is not None
    assert 16 < solution.usage.policy_calls < 32
    assert solution.usage.policy_tokens == sum(solution.tree.num_tokens)
    assert solution.usage.completions == len(solution.candidates)


def test_a_failing_child_leaves_its_siblings() -> None:
    def propose(chain: Chain, seed: int):
        if seed % 8 == 0:
            raise RuntimeError("lost connection")
        return scripted_step("#### 1", "eos")

    policy = ScriptedPolicy(propose, latency=lambda c, s: 9.0 if s % 8 == 0 else 1.0)
    search = engine(BestOfN(n=32), policy, hash_verifier(), budget=LONG)
    solution, _ = run_virtual(search.asolve("q"))
    assert solution.stop == "policy_failed"
    assert solution.error == "RuntimeError: lost connection"
    assert solution.answer == "1"
    assert solution.usage.policy_tokens == sum(solution.tree.num_tokens) > 0


@pytest.mark.parametrize("part", ["policy", "verifier"])
def test_a_cancellation_from_within_is_a_failure_of_that_problem(part: str) -> None:
    def fail(chain: Chain) -> float:
        if part == "verifier" and chain.question == "b":
            raise asyncio.CancelledError
        return 0.5

    def propose(chain: Chain, seed: int):
        if part == "policy" and chain.question == "b":
            raise asyncio.CancelledError
        return scripted_step("#### 1", "eos")

    search = engine(BestOfN(n=2), ScriptedPolicy(propose), ScriptedVerifier(score_fn=fail))
    stops = {s.problem.text: s.stop for s in search.solve_many(["a", "b", "c"])}
    assert stops == {"a": "done", "b": f"{part}_failed", "c": "done"}


@pytest.mark.parametrize("how", ["swallows", "turns into an error"])
def test_a_policy_that_does_not_heed_a_cancellation_ends_all_the_same(how: str) -> None:
    class Deaf:
        def __init__(self) -> None:
            self.inner, self.asked = random_policy(), 0
            self.spec = self.inner.spec

        async def sample(self, chains, seeds, params):
            self.asked += 1
            try:
                await asyncio.sleep(4)
            except asyncio.CancelledError:
                if how != "swallows":
                    raise RuntimeError("the request was aborted") from None
            async for found in self.inner.sample(chains, seeds, params):
                yield found

    policy = Deaf()
    search = engine(Beam(n=4, width=2), policy, hash_verifier(), budget=LONG)
    solution, passed = run_virtual(search.asolve("q"))
    assert (solution.stop, passed, policy.asked) == ("budget", 10, 3)


def test_problems_that_cannot_be_solved_do_not_end_the_run() -> None:
    search = engine(BestOfN(n=2), random_policy(), hash_verifier())
    solutions = list(search.solve_many(["a", " ", "c", "\ud800 half a character"]))
    assert len(solutions) == 4
    [empty] = [s for s in solutions if not s.problem.text.strip()]
    assert (empty.answer, empty.stop) == (None, "failed")
    assert "empty" in (empty.error or "")


@pytest.mark.parametrize("value", [None, "0.5", [0.5]])
def test_a_score_that_is_no_number_is_malformed(value) -> None:
    class Odd(ScriptedVerifier):
        async def score(self, chains):
            return [StepScores(values=(value,)) for _ in chains]

    policy = ScriptedPolicy(lambda chain, seed: scripted_step("#### 1", "eos"))
    solution = engine(BestOfN(n=2), policy, Odd(score_fn=lambda c: 1.0)).solve("q")
    assert solution.stop == "verifier_failed"
    assert "malformed" in (solution.error or "")


@pytest.mark.parametrize("limit", [{"verifier_tokens": 50}, {"flops": 150}], ids=str)
def test_a_question_that_costs_more_than_the_budget_is_not_started(limit) -> None:
    class Long(ScriptedVerifier):
        def count_tokens(self, chain: Chain) -> int:
            return 3 * chain.num_new if len(chain) else 200

    verifier = Long(score_fn=lambda chain: 0.5, num_parameters=1)
    search = engine(Beam(), random_policy(num_parameters=1), verifier, budget=Budget(**limit))
    solution = search.solve("q")
    assert solution.stop == "budget"
    assert solution.usage.policy_calls == 0


@pytest.mark.parametrize(
    "limits", [{"policy_tokens": 90}, {"verifier_tokens": 30}, {"completions": 5}], ids=str
)
def test_expansions_at_once_do_not_race_for_the_budget(limits) -> None:
    async def waves(session) -> None:
        [nodes] = await session.expand([ROOT], 4)
        for _ in range(3):
            live = [n for n in nodes if not session.tree.is_terminal(n)]
            groups = await session.gather(*(session.expand([node], 3) for node in live))
            nodes = [node for [group] in groups for node in group]
            if session.exhausted:
                return

    results = set()
    for salt in range(6):

        async def wait(chain: Chain, salt: int = salt) -> None:
            await asyncio.sleep(3.0 * fraction("verifier", salt, chain.text))

        search = engine(
            Plan(waves),
            random_policy(eos=0.1, latency=latency(5.0, salt)),
            hash_verifier(latency=wait, tokens_per_step=1),
            budget=Budget(**{"policy_tokens": None, **limits}),
            sampling=SamplingParams(max_step_tokens=6, max_tokens=30),
        )
        solution, _ = run_virtual(search.asolve("q"))
        results.add(str(fingerprint(solution)))
    assert len(results) == 1


def test_cancelling_one_of_two_expansions_does_not_break_the_other() -> None:
    async def plan(session) -> None:
        first = asyncio.ensure_future(session.expand([ROOT], 2))
        second = asyncio.ensure_future(session.expand([ROOT], 2))
        await asyncio.sleep(5)
        second.cancel()
        await first

    policy = random_policy(latency=lambda c, s: 1.0 if c.tree.num_children(ROOT) else 8.0)
    solution, _ = run_virtual(engine(Plan(plan), policy, hash_verifier()).asolve("q"))
    assert solution.stop == "done"


def test_lookahead_with_every_score_failed() -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: ScoreFailure("missing", "no verdict"))
    solution = engine(Beam(n=4, width=2, lookahead=1), random_policy(), verifier).solve("q")
    assert solution.stop == "verifier_failed"


def test_steps_that_were_only_sampled_are_scored_with_their_children() -> None:
    async def plan(session) -> None:
        [[node]] = await session.sample([ROOT], 1)
        assert session.value(node) is None
        await session.expand([node], 2)
        await session.score([node])

    search = engine(Plan(plan), random_policy(eos=0), hash_verifier(aggregation="min"))
    column = search.solve("q").tree.scores["scripted"]
    assert list(column.status) == [0, 1, 1, 1]


def test_a_failure_on_the_way_leaves_no_value() -> None:
    async def plan(session) -> None:
        [[node]] = await session.expand([ROOT], 1)
        [[child]] = await session.expand([node], 1)
        assert session.value(node) is None
        assert session.value(child) is None

    def score(chain: Chain):
        return ScoreFailure("missing", "no") if len(chain) == 1 else 0.9

    search = engine(Plan(plan), random_policy(eos=0), ScriptedVerifier(score_fn=score))
    assert search.solve("q").stop == "done"


def test_parts_of_scores_that_change_keep_their_lists() -> None:
    def score(chain: Chain) -> list[float]:
        return [fraction(chain.text, k) for k in range(len(chain))]

    member = ScriptedVerifier(score_fn=score, name="critic", incremental=False)
    both = EnsembleVerifier([member], name="ens", aggregation="min")
    tree = engine(Beam(n=4, width=2), random_policy(), both).solve("q").tree
    assert tree.scores["ens"].per_leaf
    assert tree.scores["ens"].per_leaf == tree.scores["critic"].per_leaf


def test_a_chain_that_ends_with_its_last_token_is_cut_not_open() -> None:
    policy = table_policy({"": ["a b c #### 4\n"], "a b c #### 4\n": ["more."]})
    sampling = SamplingParams(max_tokens=5, max_step_tokens=5)
    solution = engine(BestOfN(n=2), policy, sampling=sampling).solve("q")
    assert {solution.tree.stop(n) for n in solution.tree.leaves()} == {"length"}
    assert solution.answer == "4"


def test_infinite_columns_and_odd_meta_can_be_traced(tmp_path) -> None:
    import datetime

    from stepsearch.search.trace import read

    async def plan(session) -> None:
        session.tree.column("bound", float, default=float("-inf"))
        await session.expand([ROOT], 2)

    path = tmp_path / "trace.jsonl"
    problem = Problem(text="q", meta={"day": datetime.date(2020, 1, 2)})
    engine(Plan(plan), random_policy(), hash_verifier(), trace=path).solve(problem)
    [trace] = read(path)
    assert trace.tree.columns["bound"].data[1] == float("-inf")
    assert trace.problem.meta == {"day": "2020-01-02"}


def test_blocking_calls_from_within_a_search_are_refused() -> None:
    search = engine(BestOfN(n=1), random_policy())

    def propose(chain: Chain, seed: int):
        search.solve("inner")
        return scripted_step("#### 1", "eos")

    solution = engine(BestOfN(n=1), ScriptedPolicy(propose)).solve("outer")
    assert solution.stop == "policy_failed"
    assert "await asolve()" in (solution.error or "")


def solve_in_child(queue) -> None:
    queue.put(engine(BestOfN(n=2), random_policy(), hash_verifier()).solve("q").stop)


@pytest.mark.skipif(sys.platform != "linux", reason="forking is for Linux")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_can_solve() -> None:
    engine(BestOfN(n=2), random_policy(), hash_verifier()).solve("q")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=solve_in_child, args=(queue,))
    process.start()
    assert queue.get(timeout=30) == "done"
    process.join(timeout=30)
    queue.close()
    queue.join_thread()


@pytest.mark.parametrize("kind", [collections.deque, dict.fromkeys, set])
def test_scores_that_cannot_be_divided_end_in_an_error_not_in_silence(kind) -> None:
    class Odd:
        def __init__(self) -> None:
            self.inner = hash_verifier()
            self.spec = self.inner.spec

        def count_tokens(self, chain: Chain) -> int | None:
            return self.inner.count_tokens(chain)

        async def score(self, chains):
            return kind(range(len(chains)))

    solver = engine(Beam(n=4, width=2), random_policy(), Odd())
    solutions = list(solver.solve_many([f"q{k}" for k in range(4)]))
    assert [s.stop for s in solutions] == ["verifier_failed"] * 4


@pytest.mark.parametrize("part", ["policy", "verifier"])
def test_a_plug_in_that_exits_ends_its_problem_alone(part: str) -> None:
    def leaves(*_: object):
        raise SystemExit("boom")

    policy = ScriptedPolicy(leaves) if part == "policy" else random_policy()
    verifier = hash_verifier() if part == "policy" else ScriptedVerifier(score_fn=leaves)
    solution = engine(Beam(n=4, width=2), policy, verifier).solve("q")
    assert solution.stop == f"{part}_failed"
    assert "SystemExit" in (solution.error or "")
    assert engine(Beam(n=4, width=2), random_policy(), hash_verifier()).solve("q").stop == "done"


@pytest.mark.parametrize("error", [SystemExit("boom"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("place", ["member", "latency", "part"])
def test_a_plug_in_that_exits_in_a_task_keeps_nobody_waiting(place: str, error) -> None:
    async def run(session) -> None:
        await session.gather(leave(), asyncio.sleep(30))

    async def leave(*_: object) -> None:
        raise error

    policy: Any = random_policy()
    strategy: Any = Dvts(n=4, width=2)
    verifier: Any = hash_verifier()
    if place == "latency":
        policy = random_policy(latency=lambda *_: raised(error))
    elif place == "part":
        strategy = Plan(run)
    else:
        bad = ScriptedVerifier(score_fn=lambda _: raised(error), name="bad")
        verifier = EnsembleVerifier([hash_verifier(), bad])
    solver = engine(strategy, policy, verifier)
    slow = engine(BestOfN(n=2), random_policy(latency=lambda *_: 0.2))
    others = background.submit(slow.asolve("q"))
    [solution] = solver.solve_many(["q"])
    assert solution.stop in ("failed", "policy_failed", "verifier_failed")
    assert others.result(timeout=20).stop == "done", "other searches go on"


def test_questions_that_exit_end_their_loop_and_no_other_search() -> None:
    def questions():
        yield "q"
        raise SystemExit("boom")

    slow = engine(BestOfN(n=2), random_policy(latency=lambda *_: 0.2))
    others = background.submit(slow.asolve("q"))
    with pytest.raises(SystemExit):
        list(engine(BestOfN(n=2), random_policy()).solve_many(questions()))
    assert others.result(timeout=20).stop == "done"


@pytest.mark.parametrize("part", ["policy", "verifier"])
def test_a_plug_in_that_lets_a_closed_generator_out_is_reported(part: str) -> None:
    def leaves(*_: object):
        raise GeneratorExit

    policy = ScriptedPolicy(leaves) if part == "policy" else random_policy()
    verifier = ScriptedVerifier(score_fn=leaves) if part == "verifier" else hash_verifier()
    solution = engine(Beam(n=4, width=2), policy, verifier).solve("q")
    assert solution.stop == f"{part}_failed"
    assert "GeneratorExit" in (solution.error or "")


def raised(error: BaseException):
    raise error


ERRORS = [ValueError("odd"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), TimeoutError()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("method", ["extract", "equal"])
def test_a_task_that_raises_loses_nothing_that_was_spent(method: str, error) -> None:
    task = ExactTask()
    search = engine(BestOfN(n=8), random_policy(), hash_verifier(), task=task)
    spent = search.solve("q").usage.policy_tokens
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactTask, method, lambda *_: raised(error))
        [solution] = search.solve_many(["q"])
    assert (solution.answer, solution.stop) == (None, "failed")
    assert (solution.error or "").startswith("task: ")
    assert solution.usage.policy_tokens == sum(solution.tree.num_tokens) == spent > 0
    assert search.solve("q").stop == "done", "the loop goes on"


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_strategy_that_raises_loses_nothing_that_was_spent(error) -> None:
    async def run(session) -> None:
        await session.expand([ROOT], 4, until="end")
        raise error

    search = engine(Plan(run), random_policy(), hash_verifier())
    [solution] = search.solve_many(["q"])
    assert (solution.stop, len(solution.candidates)) == ("failed", 4)
    assert solution.answer is not None, "what was found before is there"
    assert (solution.error or "").startswith("search: ")
    assert solution.usage.policy_tokens == sum(solution.tree.num_tokens) > 0


def test_an_end_that_does_not_exist_is_a_failure() -> None:
    async def run(session) -> None:
        session.stop = "nonsense"

    solution = engine(Plan(run), random_policy(), hash_verifier()).solve("q")
    assert (solution.stop, solution.error) == (
        "failed",
        "search: the strategy set session.stop='nonsense'",
    )


@pytest.mark.parametrize("budget", [30, 10_000])
@pytest.mark.parametrize("error", ERRORS[1:4], ids=repr)
def test_a_policy_that_exits_under_a_tight_budget_keeps_nobody_waiting(error, budget) -> None:
    limit = Budget(policy_tokens=budget)
    policy = ScriptedPolicy(lambda *_: raised(error))
    solution = engine(Beam(n=8, width=2), policy, hash_verifier(), budget=limit).solve("q")
    assert solution.stop == "policy_failed"


def test_what_a_strategy_does_not_wait_for_ends_with_it() -> None:
    async def run(session) -> None:
        tasks.append(asyncio.create_task(session.expand([ROOT], 4)))
        tasks.append(asyncio.create_task(session.expand([ROOT], 4)))
        await asyncio.sleep(1.5)

    tasks: list[asyncio.Task[object]] = []
    policy = random_policy(latency=lambda chain, seed: 1.0 if seed % 2 else 9.0)
    solution, passed = run_virtual(engine(Plan(run), policy, hash_verifier()).asolve("q"))
    assert passed == 1.5
    assert all(task.done() for task in tasks)
    assert solution.usage.policy_tokens == sum(solution.tree.num_tokens) > 0


def test_a_step_has_no_more_ids_than_tokens() -> None:
    policy = ScriptedPolicy(lambda *_: Step(text="a", token_ids=(1, 2, 3), stop="eos", count=0))
    solution = engine(BestOfN(n=2), policy, hash_verifier()).solve("q")
    assert solution.stop == "policy_failed"
    assert "fewer tokens" in (solution.error or "")


@pytest.mark.parametrize("item", [5, None])
def test_what_is_no_problem_is_named(item) -> None:
    search = engine(BestOfN(n=2), random_policy(), hash_verifier())
    with pytest.raises(ConfigurationError, match="a problem is a text or a Problem"):
        list(search.solve_many(["a", item, "b"]))


def test_a_task_that_extracts_no_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExactTask, "extract", lambda *_: 7)
    solution = engine(BestOfN(n=2), random_policy(), hash_verifier()).solve("q")
    assert (solution.stop, solution.usage.policy_calls) == ("failed", 2)
    assert "extracted 7" in (solution.error or "")


@pytest.mark.parametrize("count", [-1, 3.5, math.nan])
def test_prompt_tokens_that_are_no_number_of_tokens(count) -> None:
    class Odd:
        spec = random_policy().spec

        async def sample(self, chains, seeds, params):
            yield Sample(0, (scripted_step("#### 1", "eos"),), count)

    solution = asyncio.run(engine(BestOfN(n=1), Odd(), hash_verifier()).asolve("q"))
    assert solution.stop == "policy_failed"
    assert "prompt tokens" in (solution.error or "")


@pytest.mark.parametrize("odd", [{"answer": 42}, {"id": 7}, {"meta": [1]}, {"text": None}])
def test_a_problem_says_what_is_wrong_with_it(odd) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(odd))}="):
        Problem(**{"text": "q"} | odd)


def test_problems_are_read_a_few_ahead() -> None:
    read = 0

    def source():
        nonlocal read
        for k in range(1000):
            read += 1
            yield f"q{k}"

    solver = engine(BestOfN(n=1), random_policy(), hash_verifier(), concurrency=4)
    solutions = solver.solve_many(source())
    next(solutions)
    time.sleep(0.3)
    assert read <= 16
    assert sum(1 for _ in solutions) == 999


class Slow:
    """A verifier that takes three seconds for a call and keeps a log of them."""

    spec = VerifierSpec(name="slow")

    def __init__(self) -> None:
        self.log: list[str] = []

    def count_tokens(self, chain: Chain) -> int:
        return 0

    async def score(self, chains):
        call = len(self.log)
        self.log.append("running")
        try:
            await asyncio.sleep(3.0)
        except asyncio.CancelledError:
            self.log[call] = "cancelled"
            raise
        self.log[call] = "done"
        return [StepScores(values=(0.5,) * chain.num_new) for chain in chains]


@pytest.mark.parametrize("strategy", [BestOfN(n=8), Beam(n=4, width=2)], ids=["best_of_n", "beam"])
@pytest.mark.parametrize("slowest", [0.4, 9.0])
def test_a_search_that_is_cut_short_leaves_nothing_to_the_verifier(strategy, slowest) -> None:
    verifier = Slow()
    policy = ScriptedPolicy(
        lambda chain, seed: scripted_step("#### 1", "eos"),
        latency=lambda chain, seed: slowest if seed % 8 == 0 else 0.05 * (seed % 8),
    )
    budget = Budget(policy_tokens=None, seconds=1.0)

    async def run() -> None:
        solution = await engine(strategy, policy, verifier, budget=budget).asolve("q")
        assert solution.stop == "budget"
        await asyncio.sleep(0.01)
        assert len(verifier.log) > 1
        assert set(verifier.log) == {"cancelled"}

    run_virtual(run())
