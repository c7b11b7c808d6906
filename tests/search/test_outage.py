"""A verifier that is out of reach: waited for, then reported; nothing is made up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.clock import run_virtual
from support.worlds import engine, fingerprint, hash_verifier, latency, random_policy

from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.contracts import Policy, StepScores, Verifier
from stepsearch.search.outage import WAITS
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.tree import FAILED, SCORED, Chain
from stepsearch.search.types import Problem, Solution
from stepsearch.verifiers.scripted import ScriptedVerifier

BEAM = Beam(n=8, width=4)


class Unsteady:
    """Cannot be reached in the calls that are listed, counted from 0; or from one on, for ever."""

    def __init__(self, inner: Verifier, gone: range, error: type[Exception]) -> None:
        self.spec = inner.spec
        self._inner, self._gone, self._error = inner, gone, error
        self.calls = 0

    def count_tokens(self, chain: Chain) -> int | None:
        return self._inner.count_tokens(chain)

    async def score(self, chains: Sequence[Chain]) -> Sequence[StepScores]:
        call, self.calls = self.calls, self.calls + 1
        if call in self._gone:
            raise self._error("nobody answers")
        return await self._inner.score(chains)


def unsteady(gone: range, error: type[Exception] = ConnectionError) -> Unsteady:
    return Unsteady(hash_verifier(), gone, error)


def solved(
    verifier: Verifier, strategy: Beam | BestOfN = BEAM, policy: Policy | None = None
) -> tuple[Solution, float]:
    made = engine(strategy, policy or random_policy(), verifier, select="best")
    return run_virtual(made.asolve("q"))


@pytest.mark.parametrize("error", [ConnectionError, ConnectionRefusedError, TimeoutError])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_outage_in_the_middle_is_waited_out(error: type[Exception], count: int) -> None:
    undisturbed, _ = solved(hash_verifier())
    solution, seconds = solved(unsteady(range(1, 1 + count), error))
    assert fingerprint(solution) == fingerprint(undisturbed)
    assert solution.stop == undisturbed.stop
    assert seconds == pytest.approx(sum(WAITS[:count]))


def test_a_verifier_that_stays_away_is_reported() -> None:
    verifier = unsteady(range(2, 10**6))
    solution, seconds = solved(verifier)
    assert solution.stop == "verifier_failed"
    assert solution.error is not None
    assert "was out of reach for 10.5 s (ConnectionError: nobody answers)" in solution.error
    assert seconds == pytest.approx(sum(WAITS))
    assert verifier.calls == 2 + len(WAITS) + 1 + 8, "one by one the last time only"


def test_a_chain_that_breaks_the_connection_fails_alone() -> None:
    class Long(ScriptedVerifier):
        async def score(self, chains: Sequence[Chain]) -> Sequence[StepScores]:
            if any("9" in chain.steps[-1].text for chain in chains):
                raise TimeoutError("too long")
            return await super().score(chains)

    verifier = Long(score_fn=lambda chain: 0.5)
    texts = [f"#### {digit}" for digit in range(10)]
    policy = ScriptedPolicy(lambda chain, seed: scripted_step(texts[seed % 10], "eos"))
    solution, seconds = solved(verifier, BestOfN(n=40), policy)
    assert solution.stop == "verifier_failed"
    assert seconds == pytest.approx(sum(WAITS))
    assert "9" in {candidate.answer for candidate in solution.candidates}
    for candidate in solution.candidates:
        assert (candidate.score is None) == (candidate.answer == "9")


def test_a_chain_that_is_to_blame_does_not_cost_the_others_their_scores() -> None:
    """Together they break the connection; alone one raises, the others are scored once."""
    asked = []

    class Odd(ScriptedVerifier):
        async def score(self, chains: Sequence[Chain]) -> Sequence[StepScores]:
            if len(chains) > 1:
                raise ConnectionError("too many")
            asked.append(chains[0])
            if chains[0].steps[-1].text.endswith("9"):
                raise ValueError("odd")
            return await super().score(chains)

    policy = ScriptedPolicy(lambda chain, seed: scripted_step(f"#### {seed % 10}", "eos"))
    solution, _ = solved(Odd(score_fn=lambda chain: 0.5), BestOfN(n=40), policy)
    assert len(asked) == 40
    for candidate in solution.candidates:
        assert (candidate.score is None) == (candidate.answer == "9")


def test_no_candidate_gets_a_made_up_score() -> None:
    undisturbed, _ = solved(hash_verifier())
    solution, _ = solved(unsteady(range(2, 10**6)))
    tree, column = solution.tree, solution.tree.scores["scripted"]
    known = [node for node in range(1, len(tree)) if column.status[node] == SCORED]
    assert known, "what was scored before is kept"
    assert len(known) < len(tree) - 1
    assert FAILED not in column.status
    for node in known:
        assert column[node] == undisturbed.tree.scores["scripted"][node]
    scored = set(known)
    for candidate in solution.candidates:
        assert (candidate.score is not None) == (candidate.node in scored)
    assert solution.node is None or solution.node in scored


def test_away_from_the_start_leaves_no_answer() -> None:
    solution, _ = solved(unsteady(range(10**6)), BestOfN(n=4))
    assert (solution.answer, solution.score, solution.stop) == (None, None, "verifier_failed")
    assert all(candidate.score is None for candidate in solution.candidates)
    assert solution.usage.policy_tokens > 0, "what was sampled was paid for"


def test_searches_beside_wait_for_the_same_outage() -> None:
    async def many(verifier: Verifier) -> list[Solution]:
        policy = random_policy(latency=latency(0.1))
        made = engine(BEAM, policy, verifier, select="best")
        problems = [Problem(text=f"q{k}") for k in range(4)]
        found = [solution async for solution in made.asolve_many(problems)]
        return sorted(found, key=lambda solution: solution.problem.text)

    undisturbed, _ = run_virtual(many(hash_verifier()))
    shaken, _ = run_virtual(many(unsteady(range(3, 6), TimeoutError)))
    assert list(map(fingerprint, shaken)) == list(map(fingerprint, undisturbed))


def test_what_is_no_outage_is_not_asked_for_again() -> None:
    verifier = unsteady(range(1, 10**6), ValueError)
    solution, seconds = solved(verifier)
    assert (solution.stop, seconds) == ("verifier_failed", 0)
    assert solution.error == "ValueError: nobody answers"
