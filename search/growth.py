"""Growth: children are sampled, scored and added to the tree, one expansion after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import groupby, pairwise

from stepsearch.search.batching import cancel_all
from stepsearch.search.contracts import Policy, SamplingParams, StepScores
from stepsearch.search.errors import PolicyError
from stepsearch.search.expansion import Expansion
from stepsearch.search.ledger import Ledger
from stepsearch.search.meter import Meter
from stepsearch.search.scorebook import Scorebook
from stepsearch.search.seeding import Seeder
from stepsearch.search.tree import NO_NODE, Chain, Tree


class Growth:
    """Grows the tree of one search. Expansions overlap, and enter in the order asked for.

    Args:
        tree: the tree.
        policy: who samples.
        scorebook: who scores; None when nothing is.
        ledger: the budget.
        seeder: gives every child its seed.
        meter: counts what was spent.
        added: awaited when an expansion has entered the tree, with its number.

    Attributes:
        num_asked: expansions asked for.
        num_parts: parts of the search that run side by side.
        was_cut: whether the budget kept an expansion from something it wanted.
    """

    def __init__(
        self,
        *,
        tree: Tree,
        policy: Policy,
        scorebook: Scorebook | None,
        ledger: Ledger,
        seeder: Seeder,
        meter: Meter,
        added: Callable[[int], Awaitable[None]],
    ) -> None:
        self._tree = tree
        self._policy = policy
        self._scorebook = scorebook
        self._ledger = ledger
        self._seeder = seeder
        self._meter = meter
        self._added = added
        self._next_child: dict[int, int] = {}
        self._last_turn: asyncio.Future[None] | None = None
        self._num_waiting = 0
        self._askers: set[asyncio.Task[object]] = set()
        self.num_asked = 0
        self.num_parts = 0
        self.was_cut = False

    async def expand(
        self,
        nodes: Sequence[int],
        n: int,
        params: SamplingParams,
        book: Scorebook | None,
        slots: asyncio.Semaphore | None,
    ) -> list[int]:
        """Add `n` continuations of each node; the last node of each, `NO_NODE` for one missing.

        Args:
            nodes: what is continued.
            n: continuations of each.
            params: how to sample.
            book: None when they are not to be scored.
            slots: one is held while policy and verifier are at work.
        """
        chains, seeds = self._requests(nodes, n)
        at_once = book is not None and not self._ledger.limits_verifier
        expansion = Expansion(
            policy=self._policy,
            ledger=self._ledger,
            params=params,
            chains=chains,
            seeds=seeds,
            batcher=book.batcher if book is not None and at_once else None,
        )
        ends = await self._in_turn(expansion, chains, book, at_once, slots)
        self.was_cut |= expansion.cut or (book is not None and book.refused)
        return ends

    async def end(self) -> None:
        """Cancel expansions that a strategy began and did not wait for; what arrived enters."""
        await cancel_all(self._askers)

    def _requests(self, nodes: Sequence[int], n: int) -> tuple[list[Chain], list[int]]:
        """A chain and a seed per child; siblings that stand together share the chain."""
        tree, chains, seeds = self._tree, [], []
        for node, same in groupby(nodes):
            count = n * len(list(same))
            if tree.is_terminal(node):
                raise ValueError(f"node {node} ended by {tree.stop(node)}; it has no successors")
            first = self._next_child.get(node, -1)
            if first < 0:
                first = tree.num_children(node)
            self._next_child[node] = first + count
            num_new = 0 if self._scorebook is None else len(self._scorebook.unscored(node))
            chains.extend([Chain(tree, node, (), num_new)] * count)
            seeds.extend(self._seeder.children(tree, node, first, count))
        return chains, seeds

    async def _in_turn(
        self,
        expansion: Expansion,
        chains: list[Chain],
        book: Scorebook | None,
        at_once: bool,
        slots: asyncio.Semaphore | None,
    ) -> list[int]:
        """Run an expansion; its children enter after those of the expansions asked for before.

        One that the budget does not cover now, or that follows one that waits, is sent only when it
        is its turn; so is every one where scores are paid from the same limit as samples, since
        what later ones reserve would be missing or not, as timing has it. When it fails or is
        cancelled, what has arrived enters all the same: it was paid for, and may hold the answer.
        What was still under way stays reserved, since nobody can tell how much of it was spent.
        """
        previous, turn = self._last_turn, asyncio.get_running_loop().create_future()
        self._last_turn = turn
        asker = asyncio.current_task()
        assert asker is not None
        self._askers.add(asker)
        self.num_asked += 1
        number = self.num_asked
        waits = bool(self._num_waiting) or self._ledger.is_shared or not expansion.reserve()
        self._num_waiting += waits
        try:
            if waits:
                await _over(previous)
                expansion.reserve()
            scores = await self._at_work(expansion, slots)
            if book is not None and not at_once:
                await _over(previous)
                scores = await self._score_in_order(expansion, book)
            await _over(previous)
            expansion.settle()
        except BaseException:
            self.disturb(len(self._tree))
            with suppress(PolicyError):  # the first error is the one to tell
                expansion.settle()
            self._add(chains, expansion, expansion.scores_so_far(), book)
            expansion.abandon_scores()
            raise
        else:
            first = len(self._tree)
            ends = self._add(chains, expansion, scores, book)
            if book is not None and book.refused:
                self.disturb(first)
            elif expansion.cut:
                self.disturb(1 + max(ends[: expansion.num_whole], default=first - 1))
            await self._added(number)
            return ends
        finally:
            self._num_waiting -= waits
            self._askers.discard(asker)
            turn.set_result(None)

    async def _at_work(
        self, expansion: Expansion, slots: asyncio.Semaphore | None
    ) -> Sequence[StepScores | None]:
        """Let policy and verifier do their part."""
        if slots is not None:
            async with slots:
                return await self._at_work(expansion, None)
        await expansion.run()
        if self.num_parts:
            # All parts have asked before one goes on, also where nothing makes it wait.
            await asyncio.sleep(0)
        return await expansion.scores()

    def disturb(self, num_whole: int) -> None:
        """Note that from here on the tree is not that of a search that nothing disturbed."""
        if self._tree.num_whole is None:
            self._tree.num_whole = num_whole

    async def _score_in_order(
        self, expansion: Expansion, book: Scorebook
    ) -> Sequence[StepScores | None]:
        """Score only when all are there, so that the budget admits the same ones every time."""
        candidates = expansion.candidates
        order = expansion.arrivals.order()
        if order is None:
            return await book.score(candidates)
        results = await book.score([candidates[arrival] for arrival in order])
        scores: list[StepScores | None] = [None] * len(order)
        for arrival, scored in zip(order, results, strict=True):
            scores[arrival] = scored
        return scores

    def _add(
        self,
        chains: Sequence[Chain],
        expansion: Expansion,
        scores: Sequence[StepScores | None],
        book: Scorebook | None,
    ) -> list[int]:
        """Add what arrived in order; the last node of each child, `NO_NODE` for one missing."""
        arrivals, first = expansion.arrivals, len(self._tree)
        order = arrivals.order()
        if order is not None:
            arrivals = arrivals.reordered(order)
            scores = [scores[arrival] for arrival in order] if book is not None else ()
        bases = [chains[child] for child in arrivals.children]
        ends = [first + end for end in arrivals.ends]
        parents = [base.node for base in bases]
        if not arrivals.are_single:
            parents = _parents(parents, arrivals.first, first)
        self._tree.extend(parents, arrivals.steps)
        self._meter.sampled(arrivals)
        if self._scorebook is not None:
            self._scorebook.grow()
        if book is not None:
            book.enter(ends, bases, scores)
        if len(ends) == len(chains):
            return ends
        found = [NO_NODE] * len(chains)
        for child, end in zip(arrivals.children, ends, strict=True):
            found[child] = end
        return found


def _parents(parents: Sequence[int], starts: Sequence[int], first: int) -> list[int]:
    """The parent of every step, where continuation i begins with step `starts[i]`."""
    found: list[int] = []
    for parent, (start, stop) in zip(parents, pairwise(starts), strict=True):
        found.append(parent)
        found.extend(range(first + start, first + stop - 1))
    return found


async def _over(turn: asyncio.Future[None] | None) -> None:
    """Wait for a turn to end; being cancelled meanwhile does not end it."""
    if turn is not None and not turn.done():
        await asyncio.shield(turn)
