"""Session: one search in progress, and the only thing a strategy can touch."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from stepsearch.search.aggregate import chain_value, extend
from stepsearch.search.contracts import (
    Aggregation,
    Policy,
    Sample,
    SamplingParams,
    ScoreFailure,
    StepScores,
    Verifier,
)
from stepsearch.search.errors import StepsearchError, VerifierError
from stepsearch.search.expansion import Expansion, Request
from stepsearch.search.ledger import Ledger
from stepsearch.search.meter import Meter
from stepsearch.search.scores import checked
from stepsearch.search.seeding import Seeder
from stepsearch.search.tree import FAILED, ROOT, UNSCORED, Chain, Tree
from stepsearch.search.types import SolutionStop

T = TypeVar("T")


class Session:
    """One search in progress.

    Attributes:
        tree: the tree; strategies read it and may register columns.
        rng: the strategy's own random generator (numpy), seeded per problem.
        stop: why the search ends; a strategy sets `max_steps` when its depth limit ends it.
        stopped_by_budget: whether the budget kept the search from something it wanted.
        scoring_failed: whether scoring failed for everything in the last expansion.
    """

    def __init__(
        self,
        *,
        tree: Tree,
        policy: Policy,
        verifier: Verifier | None,
        submit: Callable[[Chain], asyncio.Future[StepScores]] | None,
        sampling: SamplingParams,
        aggregation: Aggregation,
        ledger: Ledger,
        seeder: Seeder,
        meter: Meter,
    ) -> None:
        self.tree = tree
        self.rng = seeder.generator()
        self.stop: SolutionStop = "done"
        self.sampling = sampling
        self.aggregation = aggregation
        self._policy = policy
        self._verifier = verifier
        self._submit = submit
        self._ledger = ledger
        self._seeder = seeder
        self._meter = meter
        self.stopped_by_budget = False
        self.scoring_failed = False
        self._values = array("d", [math.nan]) * len(tree)
        self._next_child: dict[int, int] = {}
        self._last_turn: asyncio.Future[None] | None = None

    @property
    def exhausted(self) -> bool:
        """Whether the budget allows nothing more; a strategy stops then."""
        if self._ledger.rest() < 1:
            self.stopped_by_budget = True
        return self.stopped_by_budget

    def affordable(self, tokens: int) -> int:
        """How many continuations of `tokens` tokens the budget allows now."""
        return int(min(self._ledger.affordable(tokens), 1 << 30))

    def value(self, node: int) -> float | None:
        """The aggregated score of the chain that ends in `node`; None when it has none."""
        value = self._values[node]
        return None if math.isnan(value) else value

    async def gather(self, *searches: Coroutine[Any, Any, T]) -> list[T]:
        """Run parts of a search concurrently; their results in the order they were given."""
        tasks = [asyncio.ensure_future(search) for search in searches]
        try:
            return [await task for task in tasks]
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def expand(
        self,
        nodes: Sequence[int],
        n: int,
        *,
        until: Literal["step", "end"] = "step",
        max_steps: int | None = None,
        temperature: float | None = None,
    ) -> list[list[int]]:
        """Sample `n` continuations under each node, score each as soon as it is there, add them.

        Args:
            nodes: open nodes; a node may stand here several times.
            n: continuations of each.
            until: one step, or all steps to the end of the chain.
            max_steps: with `until="end"`, at most so many steps.
            temperature: instead of the configured one; 0 is greedy.

        Returns:
            For each of `nodes` the last nodes of its new continuations, fewer than `n` where the
            budget did not reach. All continuations under one expansion enter the tree together,
            in order; expansions enter in the order they were asked for.

        Raises:
            PolicyError, VerifierError: the backend failed for good.
        """
        params = self._params(until, max_steps, temperature)
        return await self._grow(nodes, n, params, score=True)

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
        return await self._grow(nodes, n, params, score=False)

    async def score(self, nodes: Sequence[int]) -> None:
        """Score the chains that end in `nodes`; their steps that have no score get one."""
        if self._verifier is None or self._submit is None:
            return
        chains = [self.tree.chain(node, num_new=self._num_unscored(node)) for node in nodes]
        pending = [self._score_now(chain) for chain in chains]
        for node, future in zip(nodes, pending, strict=True):
            new = self.tree.path(node)[-max(1, self._num_unscored(node)) :]
            scores = await self._arrival(future)
            assert scores is not None
            self._record(node, new, scores)

    @staticmethod
    async def _arrival(future: asyncio.Future[StepScores] | None) -> StepScores | None:
        try:
            return None if future is None else await future
        except StepsearchError:
            raise
        except Exception as error:
            raise VerifierError(f"{type(error).__name__}: {error}") from error

    def _params(
        self, until: Literal["step", "end"], max_steps: int | None, temperature: float | None
    ) -> SamplingParams:
        base = self.sampling
        return replace(
            base,
            until=until,
            max_steps=base.max_steps if max_steps is None else max_steps,
            temperature=base.temperature if temperature is None else temperature,
            max_tokens=base.max_step_tokens if until == "step" else base.max_tokens,
        )

    async def _grow(
        self, nodes: Sequence[int], n: int, params: SamplingParams, *, score: bool
    ) -> list[list[int]]:
        expansion = Expansion(
            tree=self.tree,
            policy=self._policy,
            ledger=self._ledger,
            params=params,
            requests=self._requests(nodes, n),
            score=self._submit if score and not self._ledger.limits_verifier else None,
        )
        previous, turn = self._last_turn, asyncio.get_running_loop().create_future()
        self._last_turn = turn
        try:
            await expansion.run()
            if score and self._submit is not None and self._ledger.limits_verifier:
                self._score_in_order(expansion, nodes, n)
            scores = [await self._arrival(future) for future in expansion.scores]
            if previous is not None:
                await previous
            self.stopped_by_budget |= expansion.cut
            added = [
                None if sample is None else self._add(nodes[index // n], sample, scores[index])
                for index, sample in enumerate(expansion.samples)
            ]
        finally:
            turn.set_result(None)
        self.scoring_failed = self._all_failed([n for n in added if n is not None])
        return [
            [node for node in added[start : start + n] if node is not None]
            for start in range(0, len(added), n)
        ]

    def _requests(self, nodes: Sequence[int], n: int) -> list[Request]:
        requests: list[Request] = []
        for node in nodes:
            if self.tree.is_terminal(node):
                raise ValueError(
                    f"node {node} ended by {self.tree.stop(node)}; it has no successors"
                )
            first = self._next_child.get(node, -1)
            if first < 0:
                first = self.tree.num_children(node)
            self._next_child[node] = first + n
            seeds = self._seeder.children(self.tree, node, range(first, first + n))
            requests.extend(Request(node, seed) for seed in seeds)
        return requests

    def _score_in_order(self, expansion: Expansion, nodes: Sequence[int], n: int) -> None:
        for index, sample in enumerate(expansion.samples):
            if sample is not None:
                chain = Chain(self.tree, nodes[index // n], sample.steps, len(sample.steps))
                expansion.scores[index] = self._score_now(chain)

    def _score_now(self, chain: Chain) -> asyncio.Future[StepScores]:
        """Hand a chain to the verifier when the budget allows."""
        assert self._verifier is not None
        assert self._submit is not None
        if self._ledger.limits_verifier:
            tokens = self._verifier.count_tokens(chain)
            if tokens is None or not self._ledger.pay_scoring(tokens):
                self.stopped_by_budget = True
                refused = asyncio.get_running_loop().create_future()
                failure = ScoreFailure("budget", "the budget does not reach for scoring this chain")
                refused.set_result(StepScores(failure=failure))
                return refused
        return self._submit(chain)

    def _add(self, parent: int, sample: Sample, scores: StepScores | None) -> int:
        """Add a continuation below `parent`; returns its last node."""
        node, new = parent, []
        for step in sample.steps:
            node = self.tree.add(node, step)
            self._values.append(math.nan)
            new.append(node)
        self._meter.sampled(sample)
        if scores is not None:
            self._record(node, new, scores)
        return node

    def _all_failed(self, nodes: Sequence[int]) -> bool:
        """Whether scoring failed for every node."""
        if self._verifier is None or not nodes:
            return False
        status = self.tree.score_column(self._verifier.spec.name).status
        return all(status[node] == FAILED for node in nodes)

    def _num_unscored(self, node: int) -> int:
        assert self._verifier is not None
        column = self.tree.score_column(self._verifier.spec.name)
        count = 0
        while node != ROOT and column.status[node] == UNSCORED:
            count, node = count + 1, self.tree.parent[node]
        return count

    def _record(self, node: int, new: Sequence[int], scores: StepScores) -> None:
        """Enter what the verifier said about the chain that ends in `node`."""
        assert self._verifier is not None
        spec = self._verifier.spec
        self._meter.scored(scores)
        scores = checked(scores, spec, num_steps=self.tree.depth[node], num_new=len(new))
        column = self.tree.score_column(spec.name)
        if scores.failure is not None:
            for step in new:
                column.fail(step, scores.failure)
            return
        self._fill(spec.name, new, scores.values)
        for name, values in scores.parts.items():
            self._fill(name, new, values)
        if scores.notes:
            for step, note in zip(new[::-1], scores.notes[::-1], strict=False):
                column.notes[step] = note
        if not spec.incremental:
            column.per_leaf[node] = scores.values
        for step in new:
            self._values[step] = self._fold(step, column[step])

    def _fill(self, name: str, new: Sequence[int], values: Sequence[float]) -> None:
        column = self.tree.score_column(name)
        for step, value in zip(new[::-1], values[::-1], strict=False):
            column.set(step, value)

    def _fold(self, node: int, score: float | None) -> float:
        assert self._verifier is not None
        spec, parent = self._verifier.spec, self.tree.parent[node]
        if score is not None and spec.incremental and spec.kind == "step":
            depth, before = self.tree.depth[parent], self._values[parent]
            if depth == 0 or not math.isnan(before):
                return extend(self.aggregation, before, depth, score)
        value = chain_value(self.tree, node, spec.name, self.aggregation)
        return math.nan if value is None else value
