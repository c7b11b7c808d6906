"""What the engine relies on in a strategy, tried on small worlds whose every step is known."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, cast

from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.contracts import ScoreFailure, Strategy
from stepsearch.search.engine import Engine
from stepsearch.search.errors import ConfigurationError, PolicyError, StepsearchError
from stepsearch.search.session import Session
from stepsearch.search.task import ExactTask
from stepsearch.search.tree import FAILED, Chain
from stepsearch.search.types import Budget, Problem, Solution, Step
from stepsearch.testing.checks import BrokenContractError, require, require_object, run_checks
from stepsearch.verifiers.scripted import ScriptedVerifier

QUESTION = "Which way?"
_MAX_CALLS = 50_000
_MAX_EXPANSIONS = 2_000
_MAX_LATE_CALLS = 100
_DEPTH = 5
_PATIENCE = 2.0


def check_strategy(strategy: Strategy, *, timeout: float = 60.0) -> list[str]:
    """Check that a strategy keeps the contract; see `Strategy` and `Session`.

    Args:
        strategy: the strategy, with parameters that suit trees of five steps.
        timeout: seconds that each check may take.

    Returns:
        The names of the checks, all passed.

    Raises:
        ConformanceError: what is wrong, and what to do.
        ConfigurationError: a class was given, or an object that lacks a part.
    """
    require_object("strategy", strategy)
    suite = _Suite(strategy)
    checks = {
        "ends": suite.ends,
        "budget": suite.budget,
        "same seed": suite.same_seed,
        "latency": suite.latency,
        "side by side": suite.side_by_side,
        "failed scores": suite.failed_scores,
        "nothing scored": suite.nothing_scored,
        "no verifier": suite.no_verifier,
        "policy failure": suite.policy_failure,
        "cancelled": suite.cancelled,
    }
    return run_checks(f"strategy {type(strategy).__name__}", checks, timeout)


class _Suite:
    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    async def ends(self) -> None:
        solution = await self._solve(budget=Budget(policy_tokens=None))
        require(
            solution.stop == "max_steps" or any(c.stop == "eos" for c in solution.candidates),
            f"without a budget it ends ({solution.stop}) and no chain was finished; go on until "
            "one is, or set session.stop = 'max_steps'",
        )

    async def budget(self) -> None:
        for tokens in (1, 7, 40):
            solution = await self._solve(budget=Budget(policy_tokens=tokens))
            spent = solution.usage.policy_tokens
            require(spent <= tokens, f"{spent} policy tokens were spent of {tokens}")

    async def same_seed(self) -> None:
        trees = [_print(await self._solve()) for _ in range(3)]
        require(
            trees[0] == trees[1] == trees[2],
            "the same seed grows another tree the second time; draw from session.rng only, and "
            "keep nothing on the strategy between runs",
        )

    async def latency(self) -> None:
        plain = await self._solve()
        for salt in range(3):
            slow = await self._solve(policy=_policy(latency=_latency(salt)))
            require(
                _print(plain) == _print(slow),
                "the tree depends on how long steps take; wait for what was asked for in its order "
                "(session.gather), and never look at a clock or at what has arrived so far",
            )

    async def side_by_side(self) -> None:
        problems = [Problem(text=f"{QUESTION} {k}") for k in range(3)]
        engine = self._engine()
        alone = {p.id: _print(await self._solve_with(engine, p)) for p in problems}
        async for solution in engine.asolve_many(problems):
            require(
                _print(solution) == alone[solution.problem.id],
                "a search beside others grows another tree than alone; keep the state of a search "
                "in run(), not on the strategy",
            )

    async def failed_scores(self) -> None:
        def score(chain: Chain) -> float | ScoreFailure:
            if _fraction("fails", chain.text) < 0.5:
                return ScoreFailure("missing", "this one fails on purpose")
            return _fraction("score", chain.text)

        await self._solve(verifier=ScriptedVerifier(score_fn=score))  # the guard looks on

    async def nothing_scored(self) -> None:
        failure = ScoreFailure("missing", "all fail on purpose")
        verifier = ScriptedVerifier(score_fn=lambda chain: failure)
        solution = await self._solve(verifier=verifier, select="best")
        require(solution.answer is None, f"{solution.answer!r} was chosen without any score")

    async def no_verifier(self) -> None:
        try:
            await self._solve(verifier=None, select="majority")
        except ConfigurationError:
            return  # it may need one, and say so

    async def policy_failure(self) -> None:
        def fail(chain: Chain, seed: int) -> Step:
            raise PolicyError("fails on purpose")

        solution = await self._solve(policy=ScriptedPolicy(fail))
        require(
            solution.stop == "policy_failed",
            f"a policy that fails ends the search with stop={solution.stop!r}; let PolicyError "
            "pass through",
        )

    async def cancelled(self) -> None:
        slow = _policy(latency=lambda chain, seed: 30.0)
        search = self._solve(policy=slow, budget=Budget(policy_tokens=None, seconds=0.05))
        try:
            solution = await asyncio.wait_for(search, _PATIENCE)
        except TimeoutError:
            require(False, "it goes on after it was cancelled; let CancelledError pass through")
        require(solution.stop == "budget", f"cut short, it ends with stop={solution.stop!r}")

    async def _solve(self, **settings: Any) -> Solution:
        return await self._solve_with(self._engine(**settings), QUESTION)

    async def _solve_with(self, engine: Engine, problem: Problem | str) -> Solution:
        """Solve; what the strategy raised, and the engine made a solution of, is raised again."""
        solution = await engine.asolve(problem)
        strategy = cast(_Watched, engine.settings.strategy)
        if strategy.error is not None:
            raise strategy.error
        return solution

    def _engine(self, **settings: Any) -> Engine:
        defaults: dict[str, Any] = {
            "policy": _policy(),
            "verifier": ScriptedVerifier(score_fn=lambda c: _fraction("score", c.text)),
            "task": ExactTask(),
            "budget": Budget(policy_tokens=400),
        }
        return Engine(strategy=_Watched(self._strategy), **defaults | settings)


class _Watched:
    """Runs a strategy with a session that notices what must not happen."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.error: Exception | None = None

    async def run(self, session: Session) -> None:
        try:
            await self._strategy.run(cast(Session, _Guard(session)))
        except StepsearchError:
            raise  # the engine knows what to do
        except Exception as error:
            self.error = error
            raise


class _Guard:
    """A session that raises where a strategy would never end or follows a failed score."""

    _session: Session

    def __init__(self, session: Session) -> None:
        object.__setattr__(self, "_session", session)
        object.__setattr__(self, "_calls", 0)
        object.__setattr__(self, "_late", 0)
        object.__setattr__(self, "_expansions", 0)

    def __getattr__(self, name: str) -> Any:
        self._count()
        return getattr(self._session, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._session, name, value)

    async def expand(self, nodes: Sequence[int], n: int, **how: Any) -> list[list[int]]:
        """See `Session.expand`."""
        self._look(nodes)
        return await self._session.expand(nodes, n, **how)

    async def sample(self, nodes: Sequence[int], n: int, **how: Any) -> list[list[int]]:
        """See `Session.sample`."""
        self._look(nodes)
        return await self._session.sample(nodes, n, **how)

    def _look(self, nodes: Sequence[int]) -> None:
        session = self._session
        object.__setattr__(self, "_expansions", self._expansions + 1)
        self._count()
        if session.exhausted:
            object.__setattr__(self, "_late", self._late + 1)
        require(
            self._late <= _MAX_LATE_CALLS,
            "it goes on asking for steps when the budget is spent; return when session.exhausted",
        )
        for column in session.tree.scores.values():
            failed = [node for node in nodes if column.status[node] == FAILED]
            require(
                not failed,
                f"it expands nodes {failed[:3]} whose score failed; leave out nodes whose "
                "session.value(node) is None",
            )

    def _count(self) -> None:
        object.__setattr__(self, "_calls", self._calls + 1)
        if self._calls > _MAX_CALLS or self._expansions > _MAX_EXPANSIONS:
            raise BrokenContractError(
                f"it does not end: it asked the session {self._calls:,} times for something and "
                f"{self._expansions:,} times for steps, on a tree of {_DEPTH} steps; return when "
                "nothing can be expanded or session.exhausted"
            )


def _policy(latency: Callable[[Chain, int], float] | None = None) -> ScriptedPolicy:
    """Three ways to go on at every step; every chain ends at its second to fifth."""

    def propose(chain: Chain, seed: int) -> Step:
        way = int(_fraction("way", chain.text, len(chain), seed) * 3)
        words = " ".join([f"w{way}"] * (1 + int(_fraction("length", chain.text, way) * 4)))
        may_end = len(chain) and _fraction("end", chain.text, way) < 0.2
        if may_end or len(chain) + 1 >= _DEPTH:
            return scripted_step(f"{words} #### {way}", "eos")
        return scripted_step(f"{words}\n")

    return ScriptedPolicy(propose, latency=latency)


def _latency(salt: int) -> Callable[[Chain, int], float]:
    return lambda chain, seed: 0.003 * _fraction("latency", salt, chain.text, seed)


def _fraction(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts only."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def _print(solution: Solution) -> tuple[object, ...]:
    """Everything of a search that must not depend on time."""
    tree = solution.tree
    scores = {name: [column[n] for n in range(len(tree))] for name, column in tree.scores.items()}
    spent = (solution.usage.policy_tokens, solution.usage.completions)
    shape = (tree.parent.tolist(), list(tree.texts), scores)
    return (solution.answer, solution.score, solution.stop, spent, shape)
