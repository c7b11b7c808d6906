"""The engine: many searches at once, the same result whatever the timing, failures kept apart."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from support.clock import run_virtual
from support.strategies import STRATEGIES
from support.worlds import engine, fingerprint, fraction, hash_verifier, latency, random_policy

from stepsearch import (
    Chain,
    ConfigurationError,
    Problem,
    StepScores,
)
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.greedy import Greedy
from stepsearch.verifiers.scripted import ScriptedVerifier

PROBLEMS = [Problem(text=f"question {i}", id=str(i)) for i in range(16)]


def slow_verifier(salt: object) -> ScriptedVerifier:
    async def wait(chain: Chain) -> None:
        await asyncio.sleep(3.0 * fraction("verifier", salt, chain.text))

    return hash_verifier(latency=wait)


async def collect(search, problems):
    return {s.problem.id: fingerprint(s) async for s in search.asolve_many(problems)}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_alone_and_among_many_under_random_latency(strategy) -> None:
    alone = {}
    for problem in PROBLEMS:
        search = engine(strategy, random_policy(), hash_verifier())
        alone[problem.id] = fingerprint(search.solve(problem))
    for salt in range(3):
        search = engine(strategy, random_policy(latency=latency(5.0, salt)), slow_verifier(salt))
        together, _ = run_virtual(collect(search, PROBLEMS))
        assert together == alone


def test_without_a_verifier_under_random_latency() -> None:
    at_once = engine(BestOfN(n=9), random_policy()).solve("q")
    for salt in range(3):
        search = engine(BestOfN(n=9), random_policy(latency=latency(5.0, salt)))
        assert fingerprint(run_virtual(search.asolve("q"))[0]) == fingerprint(at_once)


def test_problems_do_not_wait_for_each_other() -> None:
    """One problem is a hundred times slower; the others are done long before it."""

    def seconds(chain: Chain, seed: int) -> float:
        return 100.0 if chain.question == "question 0" else 1.0

    search = engine(Beam(n=4, width=2), random_policy(latency=seconds, eos=0), hash_verifier())
    order: list[tuple[str, float]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async for solution in search.asolve_many(PROBLEMS):
            order.append((solution.problem.id, loop.time()))

    run_virtual(run())
    assert order[-1][0] == "0"
    assert all(finished < 10 for _, finished in order[:-1])


def test_a_candidate_is_scored_while_its_siblings_are_written() -> None:
    events: list[str] = []

    def seconds(chain: Chain, seed: int) -> float:
        events.append("ask")
        return 1.0 if len(events) == 1 else 10.0

    async def wait(chain: Chain) -> None:
        events.append(f"score at {asyncio.get_running_loop().time():.0f}")

    policy = ScriptedPolicy(lambda chain, seed: scripted_step("#### 1", "eos"), latency=seconds)
    search = engine(BestOfN(n=3), policy, hash_verifier(latency=wait))
    run_virtual(search.asolve("q"))
    assert [e for e in events if e != "ask"] == ["score at 1", "score at 10", "score at 10"]


def test_at_most_as_many_problems_as_allowed() -> None:
    running: set[str] = set()
    most = 0

    def propose(chain: Chain, seed: int):
        nonlocal most
        running.add(chain.question)
        most = max(most, len(running))
        running.discard(chain.question) if len(chain) == 1 else None
        return scripted_step("a ", "step") if len(chain) == 0 else scripted_step("b", "eos")

    policy = ScriptedPolicy(propose, latency=lambda chain, seed: 1.0)
    search = engine(Beam(n=1, width=1), policy, hash_verifier(), concurrency=3)
    results, passed = run_virtual(collect(search, PROBLEMS))
    assert len(results) == 16
    assert most == 3
    assert passed == pytest.approx(2 * 6), "16 problems of 2 s, 3 at a time"


def test_identical_problems_are_kept_apart() -> None:
    search = engine(Beam(n=4, width=2), random_policy(), hash_verifier())
    twins = [Problem(text="same", id="a", answer="1"), Problem(text="same", id="b", answer="2")]
    solutions = {s.problem.id: s for s in search.solve_many([*twins, "same", "same"])}
    assert solutions["a"].problem.answer == "1"
    assert solutions["b"].problem.answer == "2"
    assert solutions["a"].tree.tokens != solutions["b"].tree.tokens, "ids seed the search"
    assert len(solutions) == 3, "problems without an id get it from their text"


def test_one_problems_failure_is_its_own_result() -> None:
    def propose(chain: Chain, seed: int):
        if chain.question == "question 3":
            raise RuntimeError("out of memory")
        return scripted_step("#### 1", "eos")

    search = engine(BestOfN(n=2), ScriptedPolicy(propose), hash_verifier())
    solutions = {s.problem.id: s for s in search.solve_many(PROBLEMS)}
    assert len(solutions) == 16
    assert solutions["3"].stop == "policy_failed"
    assert solutions["3"].error == "RuntimeError: out of memory"
    assert solutions["3"].answer is None
    assert all(s.stop == "done" for i, s in solutions.items() if i != "3")


def test_a_failing_verifier_fails_only_its_chain() -> None:
    def score(chain: Chain) -> float:
        if "question 3" in chain.question:
            raise RuntimeError("server gone")
        return 0.5

    verifier = ScriptedVerifier(score_fn=score)
    search = engine(BestOfN(n=2), random_policy(), verifier)
    solutions = {s.problem.id: s for s in search.solve_many(PROBLEMS)}
    assert solutions["3"].stop == "verifier_failed"
    assert "server gone" in (solutions["3"].error or "")
    assert all(s.stop == "done" for i, s in solutions.items() if i != "3")


class ShortPolicy(ScriptedPolicy):
    """Ignores how many continuations are asked for."""

    async def sample(self, chains, seeds, params):
        async for sample in super().sample(chains[:1], seeds[:1], params):
            yield sample


def test_missing_continuations_are_noticed() -> None:
    policy = ShortPolicy(lambda chain, seed: scripted_step("#### 1", "eos"))
    solution = engine(BestOfN(n=3), policy, hash_verifier()).solve("q")
    assert solution.stop == "policy_failed"
    assert solution.error == "the policy returned 1 of 3 continuations"


class WrongCount(ScriptedVerifier):
    async def score(self, chains):
        return [StepScores(values=(0.5, 0.5, 0.5)) for _ in chains]


def test_a_wrong_number_of_scores_is_a_failure() -> None:
    verifier = WrongCount(score_fn=lambda chain: 1.0)
    policy = ScriptedPolicy(lambda chain, seed: scripted_step("#### 1", "eos"))
    solution = engine(BestOfN(n=2), policy, verifier).solve("q")
    assert solution.stop == "verifier_failed"
    assert "3 scores for a chain of 1 steps" in (solution.error or "")


@pytest.mark.parametrize("value", [1.5, -0.1, float("inf"), float("nan")])
def test_scores_outside_the_declared_range_are_failures(value: float) -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: value)
    solution = engine(BestOfN(n=2), random_policy(), verifier, select="majority").solve("q")
    column = solution.tree.scores["scripted"]
    assert all(column[node] is None for node in range(len(solution.tree)))
    assert solution.answer is not None, "a vote needs no scores"


def test_settings_that_contradict_each_other() -> None:
    unbounded = hash_verifier(range="unbounded")
    with pytest.raises(ConfigurationError, match="weighted"):
        engine(Beam(), random_policy(), unbounded, select="weighted")
    with pytest.raises(ConfigurationError, match="product"):
        engine(Beam(), random_policy(), unbounded, aggregation="product")
    with pytest.raises(ConfigurationError, match="needs a verifier"):
        engine(BestOfN(), random_policy(), select="best")
    with pytest.raises(ConfigurationError, match="select='vote'"):
        engine(BestOfN(), random_policy(), select="vote")
    with pytest.raises(ConfigurationError, match="concurrency=0"):
        engine(BestOfN(), random_policy(), concurrency=0)


def test_abstains_rather_than_guesses() -> None:
    verifier = ScriptedVerifier(score_fn=lambda chain: 0.4)
    policy = ScriptedPolicy(lambda chain, seed: scripted_step(f"#### {seed % 2}", "eos"))
    doubtful = engine(BestOfN(n=8), policy, verifier, select="best", abstain_below=0.7).solve("q")
    assert doubtful.answer is None
    assert doubtful.stop == "abstained"
    assert doubtful.score == 0.4
    sure = engine(BestOfN(n=8), policy, verifier, select="best", abstain_below=0.3).solve("q")
    assert sure.answer is not None


def test_an_empty_question_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        engine(Greedy(), random_policy()).solve("  \n")


def test_works_inside_a_running_loop() -> None:
    search = engine(Beam(n=4, width=2), random_policy(), hash_verifier())

    async def blocking_and_awaited() -> bool:
        return fingerprint(search.solve("q")) == fingerprint(await search.asolve("q"))

    assert asyncio.run(blocking_and_awaited())


def test_cancelling_an_awaited_search_leaves_nothing_behind() -> None:
    async def run() -> int:
        policy = random_policy(latency=lambda chain, seed: 1000.0)
        search = engine(Beam(), policy, hash_verifier())
        task = asyncio.ensure_future(search.asolve("q"))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks()) - 1

    left, passed = run_virtual(run())
    assert left == 0
    assert passed == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_trace_that_cannot_be_written_does_not_lose_the_solution(caplog) -> None:
    search = engine(Beam(), random_policy(), hash_verifier(), trace="/dev/full")
    assert [solution.stop for solution in search.solve_many(["a", "b"])] == ["done", "done"]
    assert caplog.text.count("its trace could not be written") == 2
    assert "No space left on device" in caplog.text


def test_closing_the_stream_cancels_what_is_under_way() -> None:
    search = engine(
        Greedy(),
        random_policy(latency=lambda c, s: 0.01 if c.question == "question 0" else 60.0),
    )
    stream = search.solve_many(PROBLEMS)
    assert next(stream).problem.id == "0"
    started = time.monotonic()
    stream.close()
    assert time.monotonic() - started < 30


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
sys.path[:0] = {path!r}
from support.worlds import engine, hash_verifier, random_policy
from stepsearch.search.strategies.beam import Beam
search = engine(Beam(n=16, width=2), random_policy({latency}), hash_verifier())
print("started", flush=True)
solution = search.solve("q")
print(solution.stop, solution.answer, len(solution.candidates) > 0)
"""


def script(latency: str) -> list[str]:
    path = [p for p in sys.path if p.endswith("tests")]
    return [sys.executable, "-c", textwrap.dedent(SCRIPT.format(path=path, latency=latency))]


def test_works_in_a_plain_unguarded_script() -> None:
    done = subprocess.run(script(""), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[1].startswith("done ")
    assert done.stderr == ""


def test_ctrl_c_ends_the_search_with_its_best_answer() -> None:
    slow = "eos=0.3, latency=lambda c, s: 0.01 if len(c) < 2 else 1000.0"
    with subprocess.Popen(
        script(slow), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(1.0)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert out.startswith("cancelled ")
    assert out.strip().endswith("True")
    assert err == ""
    assert process.returncode == 0
