"""Expansion: children on their way into the tree, sent as the budget allows, scored as they arrive.

A child is sent when its whole allotment is free. What does not fit waits until earlier children of
the same expansion have given back what they did not use, in the order they were sent; so what is
sent never depends on timing. When nothing is under way any more and the rest does not reach for a
whole allotment, the next child gets the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from stepsearch.search.batching import Batcher, is_cancellation
from stepsearch.search.contracts import Policy, SamplingParams, StepScores
from stepsearch.search.errors import PolicyError, StepsearchError, VerifierError
from stepsearch.search.ledger import Ledger
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step

Scores = asyncio.Future[list[StepScores | Exception]]


class Expansion:
    """A set of children that are sampled together.

    Args:
        policy: who samples them.
        ledger: the budget.
        params: how to sample; `max_tokens` is the full allotment of one child.
        chains: what is continued, one per child, in the order in which they will be added; their
            `num_new` says how many of their own steps await a score.
        seeds: one per child.
        batcher: takes chains to the verifier as they arrive; None when nothing is scored.

    Attributes:
        steps: what arrived, by child; None for a child that was not sent.
        prefixes: prefix tokens computed and reused, by arrival.
        cut: whether the budget did not reach for every child in full.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        ledger: Ledger,
        params: SamplingParams,
        chains: Sequence[Chain],
        seeds: Sequence[int],
        batcher: Batcher[Chain, StepScores] | None,
    ) -> None:
        self._policy = policy
        self._ledger = ledger
        self._params = params
        self._chains = chains
        self._seeds = seeds
        self._batcher = batcher
        self._arrivals: list[asyncio.Future[None]] = []
        self._unscored: list[int] = []
        self._scoring: list[tuple[list[int], Scores]] = []
        self.steps: list[tuple[Step, ...] | None] = [None] * len(seeds)
        self.prefixes: list[tuple[int | None, int | None]] = []
        self.cut = False
        self._unsettled = 0

    async def run(self) -> None:
        """Sample the children.

        Raises:
            PolicyError: the policy failed, or returned something else than it was asked for.
        """
        if not self.is_affordable:
            await self._run_as_affordable()
            return
        self._unsettled = len(self._seeds)
        self._ledger.reserve(self._unsettled, self._params.max_tokens)
        await self._sample(0, self._unsettled, self._params.max_tokens)

    @property
    def is_affordable(self) -> bool:
        """Whether every child can be sent in full now."""
        return self._ledger.affordable(self._params.max_tokens) >= len(self._seeds)

    def settle(self) -> None:
        """Give back what was not used; belongs to the moment the children enter the tree."""
        self._settle(0, self._unsettled, self._params.max_tokens)
        self._unsettled = 0

    async def scores(self) -> list[StepScores | None]:
        """The scores of what arrived, by child.

        Raises:
            VerifierError: the verifier failed.
        """
        self._submit()
        found: list[StepScores | None] = [None] * len(self.steps)
        for indices, future in self._scoring:
            for index, scores in zip(indices, await future, strict=True):
                found[index] = unwrap(scores)
        return found

    def scores_so_far(self) -> list[StepScores | None]:
        """The scores that are there now; what failed counts as not there."""
        found: list[StepScores | None] = [None] * len(self.steps)
        for indices, future in self._scoring:
            if future.done() and not future.cancelled():
                for index, scores in zip(indices, future.result(), strict=True):
                    found[index] = scores if isinstance(scores, StepScores) else None
        return found

    async def _run_as_affordable(self) -> None:
        loop = asyncio.get_running_loop()
        self._arrivals = [loop.create_future() for _ in self._seeds]
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._admit(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _admit(self, tasks: list[asyncio.Task[None]]) -> None:
        full, total = self._params.max_tokens, len(self._seeds)
        sizes: list[int] = []
        settled = 0
        while settled < total:
            sent, size = len(sizes), full
            fits = max(0, int(min(total - sent, self._ledger.affordable(full))))
            if fits == 0 and settled == sent:
                size, fits = min(full, self._ledger.rest()), 1
                self.cut = True
                if size < 1:
                    return
            if fits:
                self._ledger.reserve(fits, size)
                sizes.extend([size] * fits)
                tasks.append(asyncio.create_task(self._sample(sent, sent + fits, size)))
            else:
                await self._arrivals[settled]
                self._settle(settled, settled + 1, sizes[settled])
                settled += 1

    async def _sample(self, start: int, stop: int, size: int) -> None:
        try:
            await self._collect(start, stop, size)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancellation(error):
                raise
            known = isinstance(error, StepsearchError)
            failure = error if known else PolicyError(f"{type(error).__name__}: {error}")
            for arrival in self._arrivals[start:stop]:
                if not arrival.done():
                    arrival.set_exception(failure)
                    arrival.exception()  # it may be that nobody waits for it
            raise failure from error

    async def _collect(self, start: int, stop: int, size: int) -> None:
        params = self._params
        if size != params.max_tokens:
            params = replace(params, max_tokens=size)
        chains, seeds = self._chains[start:stop], self._seeds[start:stop]
        queue = None if self._batcher is None else self._queue
        whole, found, missing = size == self._params.max_tokens, self.steps, stop - start
        async for request, steps, computed, reused in self._policy.sample(chains, seeds, params):
            index = start + request
            if not 0 <= request < stop - start or found[index] is not None or not steps:
                raise PolicyError(f"the policy returned continuation {request} twice or empty")
            if steps[-1].stop in ("budget", "step"):
                steps = self._named(steps, whole)
            found[index] = steps
            missing -= 1
            self.prefixes.append((computed, reused))
            if queue is not None:
                queue(index)
            if self._arrivals:
                self._arrivals[index].set_result(None)
        if missing:
            raise PolicyError(
                f"the policy returned {stop - start - missing} of {stop - start} continuations"
            )

    def _named(self, steps: tuple[Step, ...], whole: bool) -> tuple[Step, ...]:
        """The steps with the right reason where the call's limit of tokens ended the chain.

        With the whole allotment it was the limit of a chain, else the budget; a limit that is
        reached just where a step ends is one too.
        """
        params, last = self._params, steps[-1]
        if last.stop == "step" and (params.until == "step" or len(steps) >= params.max_steps):
            return steps
        return (*steps[:-1], replace(last, stop="length" if whole else "budget"))

    def _queue(self, index: int) -> None:
        """Take a candidate to the verifier in this turn of the loop, with those beside it."""
        if not self._unscored:
            asyncio.get_running_loop().call_soon(self._submit)
        self._unscored.append(index)

    def _submit(self) -> None:
        if self._unscored and self._batcher is not None:
            indices, self._unscored = self._unscored, []
            chains = [self.candidate(index) for index in indices]
            self._scoring.append((indices, self._batcher.submit(chains)))

    def candidate(self, index: int) -> Chain:
        """The chain of a child that arrived; its new steps are not in the tree yet."""
        steps, chain = self.steps[index], self._chains[index]
        assert steps is not None
        return Chain(chain.tree, chain.node, steps, chain.num_new + len(steps))

    def _settle(self, start: int, stop: int, size: int) -> None:
        """Give back what children that were allotted `size` tokens did not use."""
        total = finished = 0
        for steps in self.steps[start:stop]:
            assert steps is not None
            tokens = steps[0].num_tokens if len(steps) == 1 else sum(s.num_tokens for s in steps)
            if tokens > size:
                raise PolicyError(
                    f"the policy generated {tokens} tokens where {size} were allowed (max_tokens)"
                )
            total += tokens
            finished += steps[-1].stop == "eos"
        count = stop - start
        self._ledger.settle(size * count - total, count - finished)


def unwrap(scores: StepScores | Exception) -> StepScores:
    """The scores, or the verifier's failure as an error of ours."""
    if isinstance(scores, StepScores):
        return scores
    if isinstance(scores, StepsearchError):
        raise scores
    raise VerifierError(f"{type(scores).__name__}: {scores}") from scores
