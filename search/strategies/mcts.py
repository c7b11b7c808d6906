"""Monte Carlo tree search over steps (PUCT), guided by a verifier.

Silver et al. 2017 (AlphaGo Zero) with a process reward model in place of the value network, as for
language models in Feng et al. 2023 (arXiv:2309.17179) and Zhang et al. 2024 (arXiv:2406.03816).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from stepsearch.search.contracts import VerifierSpec
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.session import Session
from stepsearch.search.steps import STOP_CODES
from stepsearch.search.strategies.checks import (
    require_not_negative,
    require_positive,
    require_verifier,
)
from stepsearch.search.strategies.puct import CLOSED, FINISHED, Statistics
from stepsearch.search.tree import ROOT

Work = Awaitable[tuple[list[int], bool]]
_BUDGET = STOP_CODES["budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mcts:
    """Descend, expand, back up, `simulations` times or until nothing is left to search.

    A simulation descends from the root to the child with the highest

        Q(s) - l O(s) / (N(s) + O(s)) + c P(s) sqrt(N(p) + O(p)) / (1 + N(s) + O(s))

    where N counts the simulations that were backed up through a node, O those in flight, p is the
    parent; the earliest child wins a tie. A node that was never expanded gets `width` children,
    whose values V are the verifier's. Then the mean of their values is backed up as one visit:

        backup=mean    Q(s) is the mean of what was backed up through s
        backup=max     Q(s) is the highest Q of its children that can be visited, or of all

    Until its first visit Q(s) is V(s), or Q(p) - r with `first_play=r`. A visit to a finished chain
    counts and backs its V up again. Subtrees with nothing left to expand are not entered. A child
    whose score failed, or whose chain was cut, has no value: it is not searched and adds nothing.

    `parallel` leaves are expanded at once. Simulations are backed up in the order in which they
    were selected, and simulation k is selected when exactly the first k - w are backed up,
    w = 2 parallel - 1: so the tree never depends on timing. (With w = parallel a slow leaf would
    leave most of the others idle; with parallel = 1 this is plain sequential search.)

    Args:
        simulations: how many, visits to finished chains included.
        width: children of a node.
        exploration: c, in the unit of the verifier's values; 0 follows the values alone. With a
            large c a small budget is spent before any chain is finished.
        prior: P among siblings: `uniform`, since samples of the policy come up as often as it likes
            them (Hubert et al. 2021, arXiv:2104.06303), or `policy`, the softmax of their
            log-probability per token.
        backup: `mean` or `max`.
        first_play: r, the first-play urgency reduction; None takes V.
        rollout: children are continued to the end and the value of each end is backed up as a visit
            of its own; all their steps become nodes.
        widening: progressive widening (Coulom 2007): a node of N visits may have
            floor(width N^widening) children; 0 keeps `width`.
        parallel: leaves in flight.
        virtual_loss: l; 0 only counts what is in flight (WU-UCT, Liu et al. 2020,
            arXiv:1810.11755).
        max_steps: nodes of this depth are not expanded.
    """

    grows: ClassVar = ("simulations",)

    simulations: int = 256
    width: int = 4
    exploration: float = 0.1
    prior: Literal["uniform", "policy"] = "uniform"
    backup: Literal["mean", "max"] = "mean"
    first_play: float | None = None
    rollout: bool = False
    widening: float = 0.0
    parallel: int = 1
    virtual_loss: float = 0.0
    max_steps: int = 40

    def __post_init__(self) -> None:
        for name in ("simulations", "width", "parallel", "max_steps"):
            require_positive(f"search.{name}", getattr(self, name))
        for name in ("exploration", "widening", "virtual_loss"):
            require_not_negative(f"search.{name}", getattr(self, name))
        if self.first_play is not None:
            require_not_negative("search.first_play", self.first_play)
        if self.prior not in ("uniform", "policy"):
            raise ConfigurationError(f"search.prior={self.prior!r} must be uniform or policy")
        if self.backup not in ("mean", "max"):
            raise ConfigurationError(f"search.backup={self.backup!r} must be mean or max")

    def require(self, verifier: VerifierSpec | None) -> None:
        """Raise `ConfigurationError` without a verifier."""
        require_verifier("mcts", verifier)

    @property
    def window(self) -> int:
        """The most simulations that are selected and not yet backed up."""
        return 2 * self.parallel - 1

    async def run(self, session: Session) -> None:
        """Run the simulations."""
        await _Simulations(self, session).run()


class _Simulations:
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
        work = self._expand(leaf, self._num_allowed(leaf) - self._tree.num_children(leaf))
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
        elif (value := statistics.mean_value(ends)) is not None:
            statistics.back_up(leaf, value)
        statistics.make_ready(news, width=config.width, max_depth=config.max_steps)
        statistics.set_priors(tree.children(leaf), config.prior)
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
        tasks = [work for _, work in self._flights if isinstance(work, asyncio.Task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
