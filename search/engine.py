"""Engine: binds a policy, a verifier, a strategy and a task, and runs many searches at once."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import wait
from pathlib import Path
from weakref import WeakKeyDictionary

from stepsearch.search.background import background
from stepsearch.search.batching import Batcher, each
from stepsearch.search.contracts import (
    Aggregation,
    Extensible,
    Policy,
    SamplingParams,
    StepScores,
    Strategy,
    Verifier,
)
from stepsearch.search.errors import ConfigurationError, EmptyQuestionError
from stepsearch.search.outage import patient
from stepsearch.search.poll import Settle
from stepsearch.search.provenance import describe
from stepsearch.search.replay import require_resumable
from stepsearch.search.requirements import (
    require_continuing,
    require_counts,
    require_fit,
    require_part,
    require_settle,
)
from stepsearch.search.run import Run, RunSettings, failed
from stepsearch.search.select import Selection, require_floor, require_vote_weight
from stepsearch.search.task import MathTask, Selecting, Task
from stepsearch.search.trace import Trace, TraceWriter
from stepsearch.search.tree import Chain
from stepsearch.search.types import Budget, Problem, Solution, Usage

_log = logging.getLogger(__name__)


class Engine:
    """Solves problems.

    Args:
        policy: proposes steps.
        strategy: grows the tree.
        verifier: scores steps; None where neither strategy nor selection needs scores.
        task: wording, extraction and equality of answers; default `MathTask()`.
        select: `best`, `weighted` or `majority`; default `weighted` for a verifier with
            probabilities, else `best`, and `majority` without a verifier.
        vote_weight: exponent of the number of votes in `weighted`; 1 adds up scores.
        aggregation: how step scores become the value of a chain; default: the verifier's own.
        budget: hard limits per problem; default 2,048 policy tokens.
        sampling: temperature and so on; `max_tokens` limits one chain.
        seed: the run's seed; with the problem's id it determines everything that is random.
        abstain_below: give no answer when `Solution.score` is below it; with `weighted` also when
            the score of the chosen chain is.
        settle: stop as soon as more chains would not change the answer (`certain`), or would
            hardly (`likely`); see `Poll`. Default: never. The full search may end with another
            `Solution.score`, a share being of fewer votes.
        confidence: for `likely`, between 0.5 and 1.
        concurrency: most problems in progress at once.
        trace: a file that gets one JSON line per problem. A line that cannot be written is logged
            as an error; the solution is returned all the same.

    Raises:
        ConfigurationError: settings that contradict each other.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        strategy: Strategy,
        verifier: Verifier | None = None,
        task: Task | None = None,
        select: Selection | None = None,
        vote_weight: float = 1.0,
        aggregation: Aggregation | None = None,
        budget: Budget | None = None,
        sampling: SamplingParams | None = None,
        seed: int = 0,
        abstain_below: float | None = None,
        settle: Settle | None = None,
        confidence: float = 0.95,
        concurrency: int = 16,
        trace: str | Path | None = None,
    ) -> None:
        require_counts(seed=seed, concurrency=concurrency)
        require_part("policy", policy)
        require_part("search", strategy)
        require_continuing(policy, strategy)
        if verifier is not None:
            require_part("verifier", verifier)
        spec = None if verifier is None else verifier.spec
        if select is None and spec is not None and isinstance(task, Selecting):
            select = task.select
        select, aggregation = require_fit(
            spec, strategy=strategy, select=select, aggregation=aggregation
        )
        budget = budget or Budget()
        require_floor(abstain_below, select, spec)
        require_vote_weight(vote_weight)
        require_settle(
            settle,
            confidence,
            select=select,
            vote_weight=vote_weight,
            strategy=strategy,
            budget=budget,
        )
        self._settings = RunSettings(
            policy=policy,
            strategy=strategy,
            verifier=verifier,
            task=task or MathTask(),
            select=select,
            vote_weight=vote_weight,
            aggregation=aggregation,
            budget=budget,
            sampling=sampling or SamplingParams(max_tokens=512),
            seed=seed,
            abstain_below=abstain_below,
            settle=settle,
            confidence=confidence,
        )
        self._concurrency = concurrency
        self._trace = None if trace is None else TraceWriter(trace, describe(self._settings))
        self._batchers: WeakKeyDictionary[asyncio.AbstractEventLoop, Batcher[Chain, StepScores]] = (
            WeakKeyDictionary()
        )

    @property
    def settings(self) -> RunSettings:
        """What the engine was made of."""
        return self._settings

    async def asolve(self, problem: Problem | str) -> Solution:
        """Solve one problem on the caller's event loop."""
        return await self._execute(self._start(problem))

    def asolve_many(self, problems: Iterable[Problem | str]) -> AsyncGenerator[Solution, None]:
        """Solve problems concurrently on the caller's event loop; yield each as it finishes.

        Raises:
            ConfigurationError: `problems` is one problem, not several.
        """
        if isinstance(problems, str | Problem):
            raise ConfigurationError(f"problems={problems!r:.100} is one problem; give a list")
        return each(self._solve_apart, problems, self._concurrency)

    def solve(
        self, problem: Problem | str, *, watch: Callable[[Usage], object] | None = None
    ) -> Solution:
        """Solve one problem. Ctrl-C ends the search with its best answer so far.

        Args:
            problem: the problem, or its text.
            watch: called a few times per second with what was spent so far.
        """
        return self._wait(self._start(problem), watch)

    async def aresume(self, trace: Trace) -> Solution:
        """`resume` on the caller's event loop."""
        return await self._execute(self._go_on(trace))

    def resume(self, trace: Trace, *, watch: Callable[[Usage], object] | None = None) -> Solution:
        """Go on from a saved search, with a larger budget, or after it was interrupted.

        The result is that of one search with the larger budget: the same tree, the same answer.
        What the saved search has of it is not computed again. Continuations that its budget or an
        interruption cut are sampled anew; so `usage`, which counts both searches, exceeds that of
        one search by what they had cost. `budget.seconds` counts from now.

        One thing a trace does not tell: of two siblings that are alike, one judged and one on which
        the verifier failed by itself, which was which. There the trees may differ.

        Args:
            trace: a search of an engine with the same settings, read back. Only limits of the
                budget may be larger, and what the strategy says may grow: `simulations` of `mcts`,
                `n` of `best_of_n`.
            watch: called a few times per second with what was spent so far.

        Raises:
            ConfigurationError: another setting differs, or a limit is smaller than before.
            TraceError: the trace is of another search.
        """
        return self._wait(self._go_on(trace), watch)

    def _go_on(self, trace: Trace) -> Run:
        settings = self._settings
        grows = settings.strategy.grows if isinstance(settings.strategy, Extensible) else ()
        require_resumable(trace.provenance, describe(settings), grows)
        return Run(settings, trace.problem, trace)

    def _wait(self, run: Run, watch: Callable[[Usage], object] | None) -> Solution:
        try:
            future = background.submit(self._execute(run))
        except KeyboardInterrupt:
            run.cancel()  # it may have begun, and nobody would wait for it
            raise
        try:
            while watch is not None and not wait([future], timeout=0.2).done:
                watch(run.meter.usage())
            return future.result()
        except KeyboardInterrupt:
            run.cancel()
            return future.result()
        finally:
            future.cancel()

    def solve_many(self, problems: Iterable[Problem | str]) -> Iterator[Solution]:
        """Solve problems concurrently; yield each as it finishes.

        `problems` is read on the engine's own thread, a few ahead of what was yielded. Closing the
        iterator, or Ctrl-C while waiting, cancels what is under way.

        Raises:
            ConfigurationError: `problems` is one problem, not several.
        """
        results: queue.SimpleQueue[Solution | BaseException | None] = queue.SimpleQueue()
        room = asyncio.Semaphore(self._concurrency)

        async def produce() -> None:
            try:
                async for solution in self.asolve_many(problems):
                    results.put(solution)
                    await room.acquire()
                results.put(None)
            except BaseException as error:
                results.put(error)
                raise

        future = background.submit(produce())
        try:
            while (result := results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                background.call(room.release)
                yield result
        finally:
            future.cancel()

    def _start(self, problem: Problem | str) -> Run:
        problem = Problem(text=problem) if isinstance(problem, str) else problem
        if not isinstance(problem, Problem):
            raise ConfigurationError(f"a problem is a text or a Problem, not {problem!r:.100}")
        if not problem.text.strip():
            raise EmptyQuestionError(f"the question of problem {problem.id!r} is empty")
        return Run(self._settings, problem)

    async def _solve_apart(self, problem: Problem | str) -> Solution:
        """Solve one of many; whatever goes wrong with it is its result, not the others'."""
        try:
            return await self.asolve(problem)
        except ConfigurationError:
            raise  # it would go wrong with every other problem too
        except Exception as error:
            _log.exception("problem %r failed", problem)
            return failed(problem, error)

    async def _execute(self, run: Run) -> Solution:
        solution = await run.execute(self._batcher())
        if self._trace is not None:
            try:
                self._trace.write(solution)
            except OSError:  # the disk is full: what was found is worth more than its record
                _log.exception("problem %r: its trace could not be written", solution.problem.id)
        return solution

    def _batcher(self) -> Batcher[Chain, StepScores] | None:
        verifier = self._settings.verifier
        if verifier is None:
            return None
        loop = asyncio.get_running_loop()
        if loop not in self._batchers:
            self._batchers[loop] = Batcher(patient(verifier), max_in_flight=None)
        return self._batchers[loop]
