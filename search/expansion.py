"""Expansion: children on their way into the tree, sent as the budget allows, scored as they arrive.

A child is sent when its whole allotment is free. What does not fit waits until earlier children of
the same expansion have given back what they did not use, in the order they were sent; so what is
sent never depends on timing. When nothing is under way any more and the rest does not reach for a
whole allotment, the next child gets the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from stepsearch.search.contracts import Policy, Sample, SamplingParams, StepScores
from stepsearch.search.errors import PolicyError, StepsearchError
from stepsearch.search.ledger import Ledger
from stepsearch.search.tree import Chain, Tree


class Request(NamedTuple):
    """One child to be sampled."""

    node: int
    seed: int


class Expansion:
    """A set of children that are sampled together.

    Args:
        tree: the tree the children will be added to.
        policy: who samples them.
        ledger: the budget.
        params: how to sample; `max_tokens` is the full allotment of one child.
        requests: the children, in the order in which they will be added.
        score: hands a chain to the verifier; None when nothing is scored on arrival.

    Attributes:
        samples: what arrived, by request; None for a request that was not sent.
        scores: the scores under way, by request.
        cut: whether the budget did not reach for every child in full.
    """

    def __init__(
        self,
        *,
        tree: Tree,
        policy: Policy,
        ledger: Ledger,
        params: SamplingParams,
        requests: list[Request],
        score: Callable[[Chain], asyncio.Future[StepScores]] | None,
    ) -> None:
        self._tree = tree
        self._policy = policy
        self._ledger = ledger
        self._params = params
        self._requests = requests
        self._score = score
        self._arrivals: list[asyncio.Future[None]] = []
        self.samples: list[Sample | None] = [None] * len(requests)
        self.scores: list[asyncio.Future[StepScores] | None] = [None] * len(requests)
        self.cut = False

    async def run(self) -> None:
        """Sample the children.

        Raises:
            PolicyError: the policy failed, or returned something else than it was asked for.
        """
        count, size = len(self._requests), self._params.max_tokens
        if self._ledger.affordable(size) >= count:
            self._ledger.reserve(count, size)
            await gather(self._sample(group, size) for group in self._groups(0, count))
            for index in range(count):
                self._settle(index, size)
        else:
            await self._run_as_affordable()

    async def _run_as_affordable(self) -> None:
        loop = asyncio.get_running_loop()
        self._arrivals = [loop.create_future() for _ in self._requests]
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._admit(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _admit(self, tasks: list[asyncio.Task[None]]) -> None:
        full, total = self._params.max_tokens, len(self._requests)
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
                for group in self._groups(sent, sent + fits):
                    tasks.append(asyncio.create_task(self._sample(group, size)))
            else:
                await self._arrivals[settled]
                self._settle(settled, sizes[settled])
                settled += 1

    def _groups(self, start: int, stop: int) -> Iterable[list[int]]:
        """Neighbouring requests for the same node are one call of the policy."""
        requests = self._requests
        for _, group in groupby(range(start, stop), key=lambda index: requests[index].node):
            yield list(group)

    async def _sample(self, group: list[int], size: int) -> None:
        try:
            await self._collect(group, size)
        except Exception as error:
            known = isinstance(error, StepsearchError)
            failure = error if known else PolicyError(f"{type(error).__name__}: {error}")
            for index in group:
                if self._arrivals and not self._arrivals[index].done():
                    self._arrivals[index].set_exception(failure)
                    self._arrivals[index].exception()  # it may be that nobody waits for it
            raise failure from error

    async def _collect(self, group: list[int], size: int) -> None:
        node = self._requests[group[0]].node
        params = self._params
        if size != params.max_tokens:
            params = replace(params, max_tokens=size)
        seeds = [self._requests[index].seed for index in group]
        missing = len(group)
        async for sample in self._policy.sample(self._tree.chain(node), seeds, params):
            index = group[sample.seed_index]
            if self.samples[index] is not None or not sample.steps:
                raise PolicyError(
                    f"the policy returned continuation {sample.seed_index} twice or empty"
                )
            steps = sample.steps
            if steps[-1].stop == "budget" and size == self._params.max_tokens:
                # The whole allotment was there: the limit of a chain ended it, not the budget.
                steps = (*steps[:-1], replace(steps[-1], stop="length"))
                sample = sample._replace(steps=steps)
            self.samples[index] = sample
            missing -= 1
            if self._score is not None:
                self.scores[index] = self._score(Chain(self._tree, node, steps, len(steps)))
            if self._arrivals:
                self._arrivals[index].set_result(None)
        if missing:
            raise PolicyError(
                f"the policy returned {len(group) - missing} of {len(group)} continuations"
            )

    def _settle(self, index: int, size: int) -> None:
        sample = self.samples[index]
        assert sample is not None
        steps = sample.steps
        tokens = steps[0].num_tokens if len(steps) == 1 else sum(s.num_tokens for s in steps)
        if tokens > size:
            raise PolicyError(
                f"the policy generated {tokens} tokens where {size} were allowed (max_tokens)"
            )
        self._ledger.settle(size, tokens, steps[-1].stop == "eos")


async def gather(awaitables: Iterable[Awaitable[None]]) -> None:
    """Run concurrently; when one fails, cancel the others, wait for them and raise its error."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        for task in tasks:
            await task
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
