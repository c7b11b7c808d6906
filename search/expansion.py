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

from stepsearch.search.batching import Batcher
from stepsearch.search.contracts import Policy, SamplingParams, StepScores
from stepsearch.search.errors import PolicyError, StepsearchError, VerifierError
from stepsearch.search.ledger import Ledger
from stepsearch.search.meter import Meter
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step

Scores = asyncio.Future[list[StepScores | Exception]]


class Expansion:
    """A set of children that are sampled together.

    Args:
        policy: who samples them.
        ledger: the budget.
        meter: counts what was spent.
        params: how to sample; `max_tokens` is the full allotment of one child.
        chains: what is continued, one per child, in the order in which they will be added.
        seeds: one per child.
        batcher: takes chains to the verifier as they arrive; None when nothing is scored.

    Attributes:
        steps: what arrived, by child; None for a child that was not sent.
        cut: whether the budget did not reach for every child in full.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        ledger: Ledger,
        meter: Meter,
        params: SamplingParams,
        chains: Sequence[Chain],
        seeds: Sequence[int],
        batcher: Batcher[Chain, StepScores] | None,
    ) -> None:
        self._policy = policy
        self._ledger = ledger
        self._meter = meter
        self._params = params
        self._chains = chains
        self._seeds = seeds
        self._batcher = batcher
        self._arrivals: list[asyncio.Future[None]] = []
        self._unscored: list[int] = []
        self._scoring: list[tuple[list[int], Scores]] = []
        self.steps: list[tuple[Step, ...] | None] = [None] * len(seeds)
        self.cut = False

    async def run(self) -> None:
        """Sample the children.

        Raises:
            PolicyError: the policy failed, or returned something else than it was asked for.
        """
        count, size = len(self._seeds), self._params.max_tokens
        if self._ledger.affordable(size) >= count:
            self._ledger.reserve(count, size)
            await self._sample(0, count, size)
            self._settle(0, count, size)
        else:
            await self._run_as_affordable()

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
            fits = int(min(total - sent, self._ledger.affordable(full)))
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
        except Exception as error:
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
        whole, found, missing = size == self._params.max_tokens, self.steps, stop - start
        prefixes: list[tuple[int | None, int | None]] = []
        async for request, steps, computed, reused in self._policy.sample(chains, seeds, params):
            index = start + request
            if found[index] is not None or not steps:
                raise PolicyError(f"the policy returned continuation {request} twice or empty")
            if whole and steps[-1].stop == "budget":
                # The whole allotment was there: the limit of a chain ended it, not the budget.
                steps = (*steps[:-1], replace(steps[-1], stop="length"))
            found[index] = steps
            missing -= 1
            prefixes.append((computed, reused))
            if self._batcher is not None:
                self._queue(index)
            if self._arrivals:
                self._arrivals[index].set_result(None)
        self._meter.prefixes(prefixes)
        if missing:
            raise PolicyError(
                f"the policy returned {stop - start - missing} of {stop - start} continuations"
            )

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
        return Chain(chain.tree, chain.node, steps, len(steps))

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
        self._meter.sampled(count, total, finished)


def unwrap(scores: StepScores | Exception) -> StepScores:
    """The scores, or the verifier's failure as an error of ours."""
    if isinstance(scores, StepScores):
        return scores
    if isinstance(scores, StepsearchError):
        raise scores
    raise VerifierError(f"{type(scores).__name__}: {scores}") from scores
