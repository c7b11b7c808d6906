"""Run: the life of one search, from the problem to its solution. Failures become its result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from stepsearch.search.batching import Batcher, contained
from stepsearch.search.contracts import (
    Aggregation,
    Bounded,
    CountsPrompt,
    Policy,
    SamplingParams,
    StepScores,
    Strategy,
    Verifier,
    Windowed,
)
from stepsearch.search.errors import ConfigurationError, PolicyError, VerifierError
from stepsearch.search.ledger import Ledger
from stepsearch.search.meter import Meter
from stepsearch.search.poll import Poll, Settle
from stepsearch.search.replay import ReplayPolicy, ReplayVerifier
from stepsearch.search.scorebook import Scorebook
from stepsearch.search.scores import bounds
from stepsearch.search.seeding import Seeder
from stepsearch.search.select import Choice, Selection, candidates, choose, is_doubtful
from stepsearch.search.session import Session
from stepsearch.search.steps import STOP_CODES
from stepsearch.search.task import Task
from stepsearch.search.trace import Trace
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import (
    FAILURES,
    Budget,
    Candidate,
    Problem,
    ScoredStep,
    Solution,
    SolutionStop,
    Usage,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What all searches of an engine share; see `Engine`."""

    policy: Policy
    strategy: Strategy
    verifier: Verifier | None
    task: Task
    select: Selection
    vote_weight: float
    aggregation: Aggregation
    budget: Budget
    sampling: SamplingParams
    seed: int
    abstain_below: float | None
    settle: Settle | None
    confidence: float


class Run:
    """One search.

    Args:
        settings: what the engine was made of.
        problem: what to solve; its gold answer stays here.
        trace: a search of the same problem and settings to go on from.

    Attributes:
        meter: what was spent so far.
    """

    def __init__(self, settings: RunSettings, problem: Problem, trace: Trace | None = None) -> None:
        self._settings = settings
        self._problem = problem
        self._saved = None if trace is None else trace.tree
        self._policy_flops, self._verifier_flops = _flops(settings)
        self.meter = Meter(self._policy_flops, self._verifier_flops)
        if trace is not None:
            self.meter.carry(trace.usage)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._search: asyncio.Task[None] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """End the search from any thread; its solution is the best so far."""
        self._cancelled = True
        if self._loop is not None and self._search is not None:
            self._loop.call_soon_threadsafe(self._search.cancel)

    async def execute(self, batcher: Batcher[Chain, StepScores] | None) -> Solution:
        """Search and select. Errors of policy and verifier end the search, not the caller."""
        settings = self._settings
        tree = Tree(self._problem.text, settings.task.word(self._problem.text))
        ledger, poll = self._ledger(tree), self._poll(tree)
        session = Session(
            tree=tree,
            policy=self._policy(),
            scorebook=self._scorebook(tree, ledger, batcher),
            sampling=settings.sampling,
            ledger=ledger,
            seeder=self._seeder(),
            meter=self.meter,
            poll=poll,
            window=settings.strategy.window if isinstance(settings.strategy, Windowed) else 1,
        )
        self._loop = asyncio.get_running_loop()
        self._search = self._loop.create_task(_contained_run(settings.strategy, session))
        if self._cancelled:
            self._search.cancel()
        stop, error = await self._finish(self._search, session)
        await session.end()
        try:
            found = candidates(tree, settings.task, session.value)
            choice = await self._choose(found)
        except asyncio.CancelledError:
            raise
        except BaseException as raised:
            stop, error = "failed", f"task: {_described(contained(raised))}"
            found, choice = (), Choice(candidate=None, score=None)
        answer = None if choice.candidate is None else choice.candidate.answer
        floor = settings.abstain_below
        if floor is not None and is_doubtful(choice, settings.select, floor):
            # What failed or was cancelled is not hidden by what follows from it.
            ended = stop not in (*FAILURES, "cancelled")
            stop, answer = "abstained" if ended and answer is not None else stop, None
        return Solution(
            problem=self._problem,
            answer=answer,
            score=choice.score,
            node=None if choice.candidate is None else choice.candidate.node,
            steps=self._steps(tree, choice),
            candidates=found,
            usage=self.meter.usage(),
            tree=tree,
            stop=stop,
            error=error,
            chains_saved=poll.num_to_come
            if poll is not None and session.stopped_by_answer
            else None,
            verifier=None if settings.verifier is None else settings.verifier.spec,
        )

    def _seeder(self) -> Seeder:
        return Seeder(self._settings.seed, self._problem.id)

    def _policy(self) -> Policy:
        policy = self._settings.policy
        if self._saved is None:
            return policy
        return ReplayPolicy(self._saved, policy, self._seeder(), self.meter)

    async def _choose(self, found: Sequence[Candidate]) -> Choice:
        settings = self._settings
        how = (settings.select, settings.task.equal, settings.vote_weight)
        if len({candidate.answer for candidate in found}) < 2:
            return choose(found, *how)
        # Comparing answers may wait for another process.
        return await asyncio.to_thread(_choose_apart, found, *how)

    async def _finish(
        self, search: asyncio.Task[None], session: Session
    ) -> tuple[SolutionStop, str | None]:
        """Wait for the strategy and say why the search ended."""
        try:
            async with asyncio.timeout(self._settings.budget.seconds) as limit:
                await search
        except TimeoutError as error:
            if not limit.expired():
                return "failed", f"search: {_described(error)}"
            return "budget", None
        except PolicyError as error:
            return "policy_failed", str(error)
        except VerifierError as error:
            return "verifier_failed", str(error)
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            return "cancelled", None
        except ConfigurationError:
            raise  # it would go wrong with every other problem too
        except Exception as error:
            _log.debug("the search failed", exc_info=error)
            return "failed", f"search: {_described(error)}"
        stop = _why(session)
        if stop not in get_args(SolutionStop):
            return "failed", f"search: the strategy set session.stop={stop!r}"
        if stop == "context":
            return stop, "the question does not fit into the policy's context"
        return stop, _first_failure(session)

    def _ledger(self, tree: Tree) -> Ledger:
        settings = self._settings
        ledger = Ledger(settings.budget, self._policy_flops, self._verifier_flops)
        if settings.budget.flops is not None:
            if not isinstance(settings.policy, CountsPrompt):
                raise ConfigurationError(
                    "budget.flops needs a policy that counts its prompt (count_prompt_tokens); "
                    "limit budget.policy_tokens instead"
                )
            ledger.pay_prompt(settings.policy.count_prompt_tokens(tree.prompt))
        if ledger.limits_verifier and settings.verifier is not None:
            tokens = settings.verifier.count_tokens(tree.chain(0))
            if tokens is None:
                raise ConfigurationError(
                    f"verifier {settings.verifier.spec.name!r} does not tell its tokens: "
                    "budget.verifier_tokens and budget.flops cannot be limited"
                )
            ledger.pay_question(tokens)
        return ledger

    def _scorebook(
        self, tree: Tree, ledger: Ledger, batcher: Batcher[Chain, StepScores] | None
    ) -> Scorebook | None:
        verifier = self._settings.verifier
        if verifier is None or batcher is None:
            return None
        if self._saved is not None:
            replay = ReplayVerifier(self._saved, verifier.spec, batcher)
            batcher = Batcher(replay.score, max_in_flight=None)
        return Scorebook(tree, verifier, self._settings.aggregation, ledger, batcher, self.meter)

    def _poll(self, tree: Tree) -> Poll | None:
        settings = self._settings
        if settings.settle is None:
            return None
        strategy, verifier = settings.strategy, settings.verifier
        return Poll(
            tree=tree,
            task=settings.task,
            select=settings.select,
            settle=settings.settle,
            confidence=settings.confidence,
            highest=1.0 if verifier is None else bounds(verifier.spec)[1],
            max_chains=strategy.max_chains if isinstance(strategy, Bounded) else None,
        )

    def _steps(self, tree: Tree, choice: Choice) -> tuple[ScoredStep, ...]:
        if choice.candidate is None:
            return ()
        path: Sequence[int] = tree.path(choice.candidate.node)
        verifier = self._settings.verifier
        if verifier is None or verifier.spec.name not in tree.scores:
            return tuple(ScoredStep(text=tree.texts[node], score=None) for node in path)
        column = tree.scores[verifier.spec.name]
        values = [column[node] for node in path]
        if path[-1] in column.per_leaf:
            values = list(column.per_leaf[path[-1]])
        return tuple(
            ScoredStep(text=tree.texts[node], score=value, note=column.note(node))
            for node, value in zip(path, values, strict=True)
        )


def failed(problem: Problem | str, error: Exception) -> Solution:
    """The solution of a problem whose search could not be run to its end."""
    problem = Problem(text=problem) if isinstance(problem, str) else problem
    return Solution(
        problem=problem,
        answer=None,
        score=None,
        node=None,
        steps=(),
        candidates=(),
        usage=Usage(),
        tree=Tree(problem.text),
        stop="failed",
        error=_described(error),
    )


def _choose_apart(*arguments: Any) -> Choice:
    """`choose` on a thread of its own, from where no error but an ordinary one comes through."""
    try:
        return choose(*arguments)
    except BaseException as error:
        raise contained(error) from error


async def _contained_run(strategy: Strategy, session: Session) -> None:
    """Run a strategy; what would end the event loop ends the search alone."""
    try:
        await strategy.run(session)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise contained(error) from error


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _flops(settings: RunSettings) -> tuple[float | None, float | None]:
    """FLOPs per policy token and per verifier token: 2 x parameters."""
    policy = settings.policy.spec.num_parameters
    verifier = 0 if settings.verifier is None else settings.verifier.spec.num_parameters
    return (
        None if policy is None else 2.0 * policy,
        None if verifier is None else 2.0 * verifier,
    )


def _why(session: Session) -> SolutionStop:
    """Why a search ended that no error ended."""
    if session.stopped_by_answer:
        return "settled"
    if session.stopped_by_budget:
        return "budget"
    tree = session.tree
    full = STOP_CODES["context"]
    if full in tree.stop_code and all(tree.stop_code[leaf] == full for leaf in tree.leaves()):
        return "context"
    return "verifier_failed" if session.scoring_failed else session.stop


def _first_failure(session: Session) -> str | None:
    for column in session.tree.scores.values():
        for failure in column.failures.values():
            return f"{failure.kind}: {failure.message}"
    return None
