"""The simulations of a Monte Carlo tree search: selected, in flight, backed up in order."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from stepsearch.search.batching import cancel_all
from stepsearch.search.session import Session
from stepsearch.search.steps import STOP_CODES
from stepsearch.search.strategies.priors import set_priors
from stepsearch.search.strategies.puct import CLOSED, FINISHED, Statistics
from stepsearch.search.tree import ROOT

if TYPE_CHECKING:
    from stepsearch.search.strategies.mcts import Mcts

Work = Awaitable[tuple[list[int], bool]]
_BUDGET = STOP_CODES["budget"]


class Simulations:
    """The simulations of one search, in flight and backed up."""

    def __init__(self, config: Mcts, session: Session) -> None:
        self._config = config
        self._session = session
        self._tree = session.tree
        self._slots = asyncio.Semaphore(config.parallel) if config.parallel > 1 else None
        self._flights: deque[tuple[int, Work | None]] = deque()
        self._is_over = False
        self._is_limited = False
        self._statistics = Statistics(
            session.tree,
            exploration=config.exploration,
            first_play=config.first_play,
            virtual_loss=config.virtual_loss,
            backs_up_max=config.backup == "max",
        )

    async def run(self) -> None:
        """Select as far ahead as the window allows, else back up the oldest simulation."""
        left, window = self._config.simulations, self._config.window
        try:
            while True:
                leaf = None
                if left and not self._is_over and len(self._flights) < window:
                    leaf = self._statistics.select()
                if leaf is not None:
                    left -= 1
                    self._flights.append(self._launch(leaf))
                elif self._flights:
                    await self._land(*self._flights.popleft())
                else:
                    break
        finally:
            await self._cancel()
        # One expansion that failed is not the search's failure.
        self._session.scoring_failed &= not self._statistics.visits[ROOT]
        if left and not self._is_over and self._is_limited:
            self._session.stop = "max_steps"

    def _launch(self, leaf: int) -> tuple[int, Work | None]:
        """Send a selected node to be expanded; a finished one needs nothing."""
        if self._statistics.state[leaf] == FINISHED:
            return leaf, None
        room = self._num_allowed(leaf) - self._tree.num_children(leaf)
        work = self._expand(leaf, min(room, self._config.width))
        return leaf, work if self._config.parallel == 1 else asyncio.ensure_future(work)

    async def _expand(self, leaf: int, count: int) -> tuple[list[int], bool]:
        """The last nodes of new continuations, and whether the budget reached for all of them."""
        left = self._config.max_steps - self._tree.depth[leaf]
        [ends] = await self._session.expand(
            [leaf],
            count,
            until="end" if self._config.rollout else "step",
            max_steps=left if self._config.rollout else None,
            slots=self._slots,
        )
        return ends, len(ends) == count

    async def _land(self, leaf: int, work: Work | None) -> None:
        """Wait for the oldest simulation and back it up."""
        statistics = self._statistics
        if work is None:
            statistics.land(leaf, [])
            statistics.back_up(leaf, statistics.value[leaf])
        else:
            ends, is_complete = await work
            self._enter(leaf, ends)
            # Only now: what the budget did to others in flight is a matter of timing.
            self._is_over |= not is_complete or any(map(self._is_cut, ends))
        if self._config.widening:
            self._widen(leaf)
        if statistics.backs_up_max:
            statistics.refresh_max(leaf)

    def _is_cut(self, end: int) -> bool:
        """Whether the budget cut a continuation, or did not reach for its score."""
        if self._tree.stop_code[end] == _BUDGET:
            return True
        if self._session.value(end) is not None:
            return False
        columns = self._tree.scores.values()
        failures = [column.failures[end] for column in columns if end in column.failures]
        return any(failure.kind == "budget" for failure in failures)

    def _enter(self, leaf: int, ends: Sequence[int]) -> None:
        """Enter the new continuations of a node and back up what they are worth."""
        statistics, tree, config = self._statistics, self._tree, self._config
        news = ends if not config.rollout else self._steps_below(leaf, ends)
        statistics.enter(news, self._session.values(news))
        if config.rollout:
            for end in ends:
                if statistics.state[end] == FINISHED:
                    statistics.back_up(end, statistics.value[end])
                    if statistics.backs_up_max:
                        statistics.refresh_max(end)
        elif known := [v for v in map(statistics.value.__getitem__, ends) if not math.isnan(v)]:
            statistics.back_up(leaf, math.fsum(known) / len(known))
        statistics.make_ready(news, width=config.width, max_depth=config.max_steps)
        set_priors(statistics.prior, tree, tree.children(leaf), config.prior)
        statistics.land(leaf, news)
        self._is_limited |= any(
            tree.depth[end] >= config.max_steps and not tree.is_terminal(end) for end in ends
        )

    def _steps_below(self, leaf: int, ends: Sequence[int]) -> list[int]:
        """All nodes from below `leaf` to the ends, parents before children."""
        tree = self._tree
        return [node for end in ends for node in tree.path(end)[tree.depth[leaf] :]]

    def _widen(self, node: int) -> None:
        """Let the nodes on the way to the root have as many children as their visits allow."""
        statistics, tree = self._statistics, self._tree
        for visited in (ROOT, *tree.path(node)):
            has_room = self._num_allowed(visited) > tree.num_children(visited)
            if has_room and statistics.state[visited] == CLOSED:
                statistics.reopen(visited)

    def _num_allowed(self, node: int) -> int:
        """How many children a node may have."""
        width, widening = self._config.width, self._config.widening
        if not widening:
            return width
        return max(width, int(width * self._statistics.visits[node] ** widening))

    async def _cancel(self) -> None:
        """Take back what is still in flight when the search is cut short."""
        await cancel_all(work for _, work in self._flights if isinstance(work, asyncio.Task))
