"""Session: one search in progress, and the only thing a strategy can touch."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np

from stepsearch.search.aggregate import chain_scores
from stepsearch.search.batching import cancel_all
from stepsearch.search.contracts import Policy, SamplingParams
from stepsearch.search.growth import Growth
from stepsearch.search.ledger import Ledger
from stepsearch.search.meter import Meter
from stepsearch.search.poll import Poll
from stepsearch.search.scorebook import Scorebook
from stepsearch.search.seeding import Seeder
from stepsearch.search.tree import NO_NODE, Tree
from stepsearch.search.types import SolutionStop

T = TypeVar("T")


class Session:
    """One search in progress.

    Attributes:
        tree: the tree; strategies read it and may register columns.
        stop: why the search ends; a strategy sets `max_steps` when its depth limit ends it.
        stopped_by_budget: whether the budget kept the search from something it wanted.
        stopped_by_answer: whether a settled answer kept the search from something it wanted.
        scoring_failed: whether scoring failed for everything in the last expansion.
    """

    def __init__(
        self,
        *,
        tree: Tree,
        policy: Policy,
        scorebook: Scorebook | None,
        sampling: SamplingParams,
        ledger: Ledger,
        seeder: Seeder,
        meter: Meter,
        poll: Poll | None = None,
        window: int = 1,
    ) -> None:
        self.tree = tree
        self.stop: SolutionStop = "done"
        self.stopped_by_budget = False
        self.stopped_by_answer = False
        self.scoring_failed = False
        self._scorebook = scorebook
        self._sampling = sampling
        self._ledger = ledger
        self._seeder = seeder
        self._poll = poll
        self._window = window
        self._closed_at: int | None = None
        self._known_params: dict[tuple[str, int | None, float | None], SamplingParams] = {}
        self._growth = Growth(
            tree=tree,
            policy=policy,
            scorebook=scorebook,
            ledger=ledger,
            seeder=seeder,
            meter=meter,
            added=self._count_votes,
        )

    @cached_property
    def rng(self) -> np.random.Generator:
        """The strategy's own random generator, seeded per problem."""
        return self._seeder.generator()

    @property
    def exhausted(self) -> bool:
        """Whether the search is over, by its budget or its answer; a strategy stops then."""
        if self._is_settled():
            return True
        if self._ledger.rest() < 1:
            self.stopped_by_budget = True
        return self.stopped_by_budget

    def affordable(self, tokens: int) -> int:
        """How many continuations of `tokens` tokens the budget allows now."""
        return int(min(self._ledger.affordable(tokens), 1 << 30))

    def value(self, node: int) -> float | None:
        """The aggregated score of the chain that ends in `node`; None when it has none."""
        if self._scorebook is None:
            return None
        value = self._scorebook.values[node]
        return value if value == value else None  # NaN

    def values(self, nodes: Sequence[int]) -> list[float | None]:
        """The `value` of each of the nodes."""
        if self._scorebook is None:
            return [None] * len(nodes)
        values = self._scorebook.values
        return [None if values[node] != values[node] else values[node] for node in nodes]  # NaN

    def step_scores(self, node: int) -> tuple[float, ...] | None:
        """The scores of every step of the chain that ends in `node`; None when it has none."""
        if self._scorebook is None:
            return None
        return chain_scores(self.tree, node, self._scorebook.name)

    async def gather(self, *searches: Coroutine[Any, Any, T]) -> list[T]:
        """Run parts of a search concurrently; their results in the order they were given."""
        tasks = [asyncio.ensure_future(search) for search in searches]
        self._growth.num_parts += len(tasks)
        try:
            return [await task for task in tasks]
        except BaseException:
            await cancel_all(tasks)
            raise
        finally:
            self._growth.num_parts -= len(tasks)

    async def expand(
        self,
        nodes: Sequence[int],
        n: int,
        *,
        until: Literal["step", "end"] = "step",
        max_steps: int | None = None,
        temperature: float | None = None,
        slots: asyncio.Semaphore | None = None,
    ) -> list[list[int]]:
        """Sample `n` continuations under each node, score each as soon as it is there, add them.

        Args:
            nodes: open nodes; a node may stand here several times.
            n: continuations of each.
            until: one step, or all steps to the end of the chain.
            max_steps: with `until="end"`, at most so many steps.
            temperature: instead of the configured one; 0 is greedy.
            slots: one is held while policy and verifier are at work, but not while what they
                returned waits to enter the tree.

        Returns:
            For each of `nodes` the last nodes of its new continuations, fewer than `n` where the
            budget did not reach or the answer was settled. All continuations under one expansion
            enter the tree together, in order, but for chains to the end from one node while votes
            are counted (`Poll`); expansions enter in the order they were asked for.

        Raises:
            PolicyError, VerifierError: the backend failed for good.
        """
        params = self._params(until, max_steps, temperature)
        return await self._grow(nodes, n, params, self._scorebook, slots)

    async def sample(
        self,
        nodes: Sequence[int],
        n: int,
        *,
        until: Literal["step", "end"] = "step",
        max_steps: int | None = None,
        temperature: float | None = None,
    ) -> list[list[int]]:
        """Like `expand`, but nothing is scored."""
        params = self._params(until, max_steps, temperature)
        return await self._grow(nodes, n, params, None)

    async def score(self, nodes: Sequence[int]) -> None:
        """Score the chains that end in `nodes`: their newest steps that were never scored."""
        book = self._scorebook
        if book is None:
            return
        news = [book.unscored(node) for node in nodes]
        chains = [
            self.tree.chain(node, num_new=len(new))
            for node, new in zip(nodes, news, strict=True)
            if new
        ]
        scores = await book.score(chains)
        book.enter_chains([new for new in news if new], scores)
        await self._count_votes(self._growth.num_asked)
        self.stopped_by_budget |= book.refused
        if book.refused and nodes:
            self._growth.disturb(min(nodes))
        self.scoring_failed = book.failed(nodes)

    def _params(
        self, until: Literal["step", "end"], max_steps: int | None, temperature: float | None
    ) -> SamplingParams:
        key, base = (until, max_steps, temperature), self._sampling
        if key not in self._known_params:  # making them costs as much as a step
            self._known_params[key] = replace(
                base,
                until=until,
                max_steps=base.max_steps if max_steps is None else max_steps,
                temperature=base.temperature if temperature is None else temperature,
                max_tokens=base.max_step_tokens if until == "step" else base.max_tokens,
            )
        return self._known_params[key]

    async def _grow(
        self,
        nodes: Sequence[int],
        n: int,
        params: SamplingParams,
        book: Scorebook | None,
        slots: asyncio.Semaphore | None = None,
    ) -> list[list[int]]:
        if self._poll is None or params.until == "step" or len(nodes) != 1:
            return await self._grow_at_once(nodes, n, params, book, slots)
        ends: list[int] = []
        sent = 0
        while sent == len(ends) < n and not self._is_settled():
            wave = self._poll.wave(n - sent)
            sent += wave
            [new] = await self._grow_at_once(nodes, wave, params, book, slots)
            ends += new
        if book is not None and ends:
            self.scoring_failed = book.failed(ends)
        return [ends]

    async def end(self) -> None:
        """Cancel what the strategy began and did not wait for, once the strategy is over."""
        await self._growth.end()

    def _is_settled(self) -> bool:
        """Whether the answer is settled; asked when more was wanted.

        What was closed by an expansion holds from `window` expansions later on: by then its result
        is there whatever the timing, while of those in between some may be under way already.
        """
        if self._closed_at is not None:
            window = max(self._window, self._growth.num_parts)
            self.stopped_by_answer |= self._growth.num_asked >= self._closed_at + window - 1
        return self.stopped_by_answer

    async def _count_votes(self, number: int) -> None:
        """Count what an expansion, the `number`-th that was asked for, brought in."""
        if self._poll is not None and self._closed_at is None:
            await self._poll.update(self.value)
            if self._poll.closed:
                self._closed_at = number

    async def _grow_at_once(
        self,
        nodes: Sequence[int],
        n: int,
        params: SamplingParams,
        book: Scorebook | None,
        slots: asyncio.Semaphore | None,
    ) -> list[list[int]]:
        if n < 1 or not nodes or self._is_settled():
            return [[] for _ in nodes]
        ends = await self._growth.expand(nodes, n, params, book, slots)
        self.stopped_by_budget |= self._growth.was_cut
        if book is not None:
            self.scoring_failed = book.failed([node for node in ends if node >= 0])
        if NO_NODE not in ends:
            return [ends[start : start + n] for start in range(0, len(ends), n)]
        return [
            [node for node in ends[start : start + n] if node >= 0]
            for start in range(0, len(ends), n)
        ]
