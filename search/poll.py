"""Adaptive stopping: a search is over when more chains would not, or hardly, change its answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stepsearch.search.select import Selection
from stepsearch.search.task import Task
from stepsearch.search.tree import FAILED, Tree

Settle = Literal["certain", "likely"]
SETTLE: tuple[Settle, ...] = ("certain", "likely")

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(slots=True)
class _Answer:
    """One answer and who gave it: an exact number of votes, or the sum of their values."""

    text: str
    weight: float = 0.0


class Poll:
    """Counts the votes of chains as they enter the tree, in order, whatever the timing.

    `certain`: the answer cannot change any more. For `majority` and `weighted` the leader is ahead
    by more than all chains that may still come could add to another answer; for `best` its value is
    the largest there is.

    `likely`: Adaptive-Consistency (Aggarwal et al. 2023, arXiv:2305.11860). With a and b the votes
    of the two first answers, their summed values for `weighted`, P(p > 1/2) under
    Beta(a + 1, b + 1) is at least `confidence`. What is certain is likely, too.

    Args:
        tree: the tree of the search.
        task: extracts and compares answers.
        select: how the answer will be chosen.
        settle: the rule.
        confidence: for `likely`.
        highest: the largest value that a chain can have.
        max_chains: the most chains that the strategy ends, None when it does not know.

    Attributes:
        closed: whether the search is over.
        num_ended: chains that ended.
    """

    def __init__(
        self,
        *,
        tree: Tree,
        task: Task,
        select: Selection,
        settle: Settle,
        confidence: float,
        highest: float,
        max_chains: int | None,
    ) -> None:
        self._tree = tree
        self._task = task
        self._select = select
        self._settle = settle
        self._confidence = confidence
        self._highest = highest
        self._max_chains = max_chains
        self._answers: list[_Answer] = []
        self._by_text: dict[str, _Answer] = {}
        self._pending: list[int] = []
        self._best = -math.inf
        self._num_seen = 1
        self.num_ended = 0
        self.closed = False

    @property
    def num_to_come(self) -> int | None:
        """The most chains that may still end, None when unknown."""
        return None if self._max_chains is None else max(0, self._max_chains - self.num_ended)

    async def update(self, value: Callable[[int], float | None]) -> None:
        """Count the chains that ended since the last time; `value` tells what a node is worth."""
        nodes = range(self._num_seen, len(self._tree))
        ended = [node for node in nodes if self._tree.is_terminal(node)]
        self._num_seen = len(self._tree)
        self.num_ended += len(ended)
        waiting, self._pending = [*self._pending, *ended], []
        for node in waiting:
            await self._count(node, value(node))
        if waiting and not self.closed:
            self.closed = self._is_settled(*self._two_first())

    def wave(self, n: int) -> int:
        """How many of `n` chains to ask for now.

        The fewest after which the poll could close, so that hardly one is written in vain; but at
        least an eighth of those that ended, so that waves stay few. Under `best` any chain could
        close it: then as many as have ended.
        """
        if self._select == "best":
            return max(1, min(n, self.num_ended))
        first, second = self._two_first()
        for more in range(max(1, self.num_ended // 8), n):
            if self._is_settled(first + more * self._most, second, more):
                return more
        return n

    async def _count(self, node: int, value: float | None) -> None:
        answer = self._task.extract(self._tree.chain(node).text)
        if answer is None:
            return
        if self._select != "majority" and value is None:
            if not self._has_failed(node):
                self._pending.append(node)  # it may get a value later
            return
        self._best = max(self._best, -math.inf if value is None else value)
        group = self._by_text.get(answer)
        if group is None:
            group = self._by_text[answer] = await self._group(answer)
        group.weight += 1.0 if self._select == "majority" else value or 0.0

    def _has_failed(self, node: int) -> bool:
        return any(column.status[node] == FAILED for column in self._tree.scores.values())

    async def _group(self, text: str) -> _Answer:
        """The answer that equals this text, compared as selection does; a new one else."""
        if self._answers:  # comparing may wait for another process
            found = await asyncio.to_thread(_first_equal, text, self._answers, self._task)
            if found is not None:
                return found
        self._answers.append(_Answer(text))
        return self._answers[-1]

    @property
    def _most(self) -> float:
        """The most that one more chain adds to an answer."""
        return 1.0 if self._select == "majority" else self._highest

    def _two_first(self) -> tuple[float, float]:
        weights = sorted((answer.weight for answer in self._answers), reverse=True)
        first, second, *_ = (*weights, 0.0, 0.0)
        return first, second

    def _is_settled(self, first: float, second: float, more: int = 0) -> bool:
        """Whether it is over with these two first answers, once `more` chains have ended."""
        if self._settle == "likely" and probability_of_lead(first, second) >= self._confidence:
            return True
        if self._select == "best":
            # Of equals the earlier chain is chosen, also when its value comes later.
            return self._best >= self._highest and not self._pending
        if self.num_to_come is None:
            return False
        to_come = max(0, self.num_to_come - more) + len(self._pending)
        # Ties have rules of their own, and sums are rounded: the lead must be larger.
        return first - second > to_come * self._most * (1 + 1e-9) + 1e-9


def _first_equal(text: str, answers: Sequence[_Answer], task: Task) -> _Answer | None:
    return next((answer for answer in answers if task.equal(answer.text, text)), None)


def probability_of_lead(first: float, second: float) -> float:
    """P(p > 1/2) for p ~ Beta(first + 1, second + 1), by Gauss-Legendre quadrature.

    Args:
        first: votes of the leading answer, at least 0.
        second: votes of the one behind it, at least 0.
    """

    def half(low: float) -> float:
        x = low + (_NODES + 1) / 4
        logs = first * np.log(x) + second * np.log1p(-x)
        return float(np.dot(_WEIGHTS, np.exp(logs - peak)))

    mode = first / (first + second) if first + second > 0 else 0.5
    peak = sum(v * math.log(p) for v, p in ((first, mode), (second, 1 - mode)) if v > 0)
    upper, lower = half(0.5), half(0.0)
    return upper / (upper + lower)
