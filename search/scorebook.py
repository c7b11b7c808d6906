"""Scorebook: takes chains to the verifier and enters what it says into the tree."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from stepsearch.search.aggregate import chain_value, extend
from stepsearch.search.batching import Batcher
from stepsearch.search.contracts import (
    Aggregation,
    NewestScores,
    ScoreFailure,
    StepScores,
    Verifier,
)
from stepsearch.search.expansion import unwrap
from stepsearch.search.ledger import Ledger
from stepsearch.search.meter import Meter
from stepsearch.search.scores import bounds, checked
from stepsearch.search.tree import FAILED, ROOT, SCORED, UNSCORED, Chain, Tree

_NAN = array("d", [math.nan])
_MANY = 64  # from here on numpy is faster
_num_new = attrgetter("num_new")
_SCORED = array("b", [SCORED])
_REFUSED = ScoreFailure("budget", "the budget does not reach for scoring this chain")


class Scorebook:
    """The scores of one search.

    Attributes:
        name: of the verifier and its column.
        values: the aggregated score of the chain that ends in each node, NaN when it has none.
        refused: whether the budget did not reach for scoring something.
    """

    def __init__(
        self,
        tree: Tree,
        verifier: Verifier,
        aggregation: Aggregation,
        ledger: Ledger,
        batcher: Batcher[Chain, StepScores],
        meter: Meter,
    ) -> None:
        self._tree = tree
        self._verifier = verifier
        self._spec = verifier.spec
        self._aggregation = aggregation
        self.name = self._spec.name
        self._ledger = ledger
        self._meter = meter
        self._column = tree.score_column(self._spec.name)
        self._folds = self._spec.incremental and self._spec.kind == "step"
        self._low, self._high = bounds(self._spec)
        self.batcher = batcher
        self.values = _NAN * len(tree)
        self.refused = False

    async def score(self, chains: Sequence[Chain]) -> Sequence[StepScores]:
        """Ask the verifier, in the order of the chains, for as many as the budget allows.

        Raises:
            VerifierError: the verifier failed.
        """
        found = [StepScores(failure=_REFUSED)] * len(chains)
        allowed = [index for index, chain in enumerate(chains) if self._pay(chain)]
        if allowed:
            results = await self.batcher.submit([chains[index] for index in allowed])
            for index, scores in zip(allowed, results, strict=True):
                found[index] = unwrap(scores)
        return found

    def _pay(self, chain: Chain) -> bool:
        if not self._ledger.limits_verifier:
            return True
        tokens = self._verifier.count_tokens(chain)
        paid = tokens is not None and self._ledger.pay_scoring(tokens)
        self.refused |= not paid
        return paid

    def unscored(self, node: int) -> list[int]:
        """The newest nodes of the chain that ends in `node` that were never scored."""
        found = []
        while node != ROOT and self._column.status[node] == UNSCORED:
            found.append(node)
            node = self._tree.parent[node]
        return found[::-1]

    def failed(self, nodes: Sequence[int]) -> bool:
        """Whether there are nodes and scoring failed for all of them."""
        status = self._column.status
        return (
            bool(nodes)
            and bool(self._column.failures)
            and all(status[node] == FAILED for node in nodes)
        )

    def grow(self) -> None:
        """Make room for nodes that were added to the tree."""
        self.values.extend(_NAN * (len(self._tree) - len(self.values)))

    def enter(
        self, ends: Sequence[int], bases: Sequence[Chain], scores: Sequence[StepScores | None]
    ) -> None:
        """Enter the scores of continuations that were added to the tree.

        Args:
            ends: last node of each.
            bases: what each continues; `num_new` says how many of its steps had no score.
            scores: None where there are none.
        """
        if isinstance(scores, NewestScores) and self._enter_newest(ends, bases, scores):
            return
        depth, news, scored = self._tree.depth, [], []
        for end, base, score in zip(ends, bases, scores, strict=True):
            if score is not None:
                num_new = base.num_new + depth[end] - depth[base.node]
                news.append(self._tree.path(end)[-num_new:])
                scored.append(score)
        self.enter_chains(news, scored)

    def enter_chains(self, news: Sequence[Sequence[int]], scores: Sequence[StepScores]) -> None:
        """Enter the scores of chains whose newest steps are `news[i]`."""
        good = [self._checked(new, scored) for new, scored in zip(news, scores, strict=True)]
        self._meter.scored([s for s in good if s.failure is not _REFUSED])
        for new, scored in zip(news, good, strict=True):
            self._enter_checked(new, scored)

    def _checked(self, new: Sequence[int], scores: StepScores) -> StepScores:
        num_steps = self._tree.depth[new[-1]]
        return checked(scores, self._spec, num_steps=num_steps, num_new=len(new))

    def _enter_newest(
        self, ends: Sequence[int], bases: Sequence[Chain], scores: NewestScores
    ) -> bool:
        """Enter the scores of one new step each in bulk; False where that is not so.

        It comes to the same as `enter_chains`, at a tenth of its cost.
        """
        first = len(self._tree) - len(ends)
        if not (self._folds and ends and first == ends[0]) or any(map(_num_new, bases)):
            return False
        if self._tree.parent[first] != bases[0].node:
            return False  # the first continuation has several steps, all others one
        if self._column.failures:
            return False  # what follows a failure has no value
        if not self._are_in_range(scores.values):
            return False
        self._column.values[first:] = scores.values
        self._column.status[first:] = _SCORED * len(ends)
        if self._aggregation == "last":
            self.values[first:] = scores.values
        else:
            for node, value in enumerate(scores.values, first):
                self.values[node] = self._fold(node, value)
        self._meter.scored(scores)
        return True

    def _are_in_range(self, values: array[float]) -> bool:
        if len(values) >= _MANY:
            column = np.frombuffer(values)  # a NaN spreads to both:
            return bool(column.min() >= self._low and column.max() <= self._high)
        return all(self._low <= value <= self._high for value in values)

    def _enter_checked(self, new: Sequence[int], scores: StepScores) -> None:
        spec, column, end = self._spec, self._column, new[-1]
        if scores.failure is not None:
            for node in new:
                column.fail(node, scores.failure)
            return
        for name, values in {spec.name: scores.values, **scores.parts}.items():
            part = self._tree.score_column(name)
            for node, value in zip(new[::-1], values[::-1], strict=False):
                part.set(node, value)
        for node, note in zip(new[::-1], scores.notes[::-1], strict=False):
            if note:
                column.notes[node] = note
        if not spec.incremental:
            for name, values in {spec.name: scores.values, **scores.parts}.items():
                self._tree.scores[name].per_leaf[end] = values
        for node in new:
            self.values[node] = self._fold(node, column[node])

    def _fold(self, node: int, score: float | None) -> float:
        """The value of a node, from its parent's where the aggregation allows."""
        if score is not None and self._folds:
            parent = self._tree.parent[node]
            depth, before = self._tree.depth[parent], self.values[parent]
            if depth == 0 or before == before:  # not NaN
                return extend(self._aggregation, before, depth, score)
        value = chain_value(self._tree, node, self._spec.name, self._aggregation)
        return math.nan if value is None else value
