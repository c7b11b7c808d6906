"""The statistics of a Monte Carlo tree search, and the descent through them.

They are columns of the tree, so that a saved tree carries them:

    visits     N(s), simulations that passed through s and were backed up
    value      Q(s); before the first visit the verifier's value of s; NaN when s has none
    prior      P(s), adds up to 1 over siblings
    in_flight  O(s), simulations that passed through s and were not backed up yet
    state      what a descent may do with s: see below
    open       how many READY nodes are in the subtree of s, s included

A descent costs O(children) per level: `open` says whether a subtree holds anything to search, so
that nothing is ever scanned. All changes touch the path to the root only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepsearch.search.steps import STOP_CODES
from stepsearch.search.tree import ROOT, Tree

CLOSED, EXPANDING, READY, FINISHED = range(4)
"""Not to be expanded (now); being expanded; to be expanded by the next visit; a finished chain that
may be visited again. A descent ends at the last two. A node without a value stays CLOSED, and
nothing below it is searched."""

_EOS = STOP_CODES["eos"]
_STEP = STOP_CODES["step"]


class Statistics:
    """Visits and values of one search; the formulae are those of `Mcts`.

    Args:
        tree: the tree.
        exploration: c, the weight of the exploration term.
        first_play: r, or None for the verifier's own value of a node that was never visited.
        virtual_loss: l, what a simulation in flight takes from the value of a node.
        backs_up_max: whether Q is the best child's value rather than the mean of the simulations.
    """

    def __init__(
        self,
        tree: Tree,
        *,
        exploration: float,
        first_play: float | None,
        virtual_loss: float,
        backs_up_max: bool,
    ) -> None:
        self._tree = tree
        self._exploration = exploration
        self._first_play = first_play
        self._virtual_loss = virtual_loss
        self.backs_up_max = backs_up_max
        self.visits = tree.column("visits", int)
        self.value = tree.column("value", float, math.nan)
        self.prior = tree.column("prior", float, 1.0)
        self.in_flight = tree.column("in_flight", int)
        self.state = tree.column("state", int, CLOSED)
        self.open = tree.column("open", int)
        self.state[ROOT], self.open[ROOT] = READY, 1

    def select(self) -> int | None:
        """Descend to a node to expand or a finished one; it is in flight from then on.

        Returns:
            The node; None when nothing is open.
        """
        if not self.open[ROOT]:
            return None
        node, state = ROOT, self.state
        while state[node] < READY:
            node = self._best_child(node)
        opened = 0
        if state[node] == READY:
            state[node], opened = EXPANDING, -1
        self._pass(node, flying=1, opened=opened)
        return node

    def _best_child(self, node: int) -> int:
        """The child with the highest PUCT score among those worth a visit; the earliest wins ties.

        Children are read newest first, which is how a tree links them.
        """
        visits, value, prior = self.visits, self.value, self.prior
        state, opened, in_flight = self.state, self.open, self.in_flight
        before, loss = self._tree.prev_sibling, self._virtual_loss
        weight = self._exploration * math.sqrt(visits[node] + in_flight[node])
        first = None if self._first_play is None else value[node] - self._first_play
        if first is not None and math.isnan(first):
            first = None  # nothing was backed up yet: all that was found was cut
        best, chosen = -math.inf, -1
        child = self._tree.last_child[node]
        while child >= 0:
            if opened[child] or state[child] == FINISHED:
                count = visits[child]
                score = value[child] if count or first is None else first
                if in_flight[child]:
                    count += in_flight[child]
                    score -= loss * in_flight[child] / count
                score += weight * prior[child] / (1 + count)
                if score >= best:
                    best, chosen = score, child
            child = before[child]
        return chosen

    def enter(self, nodes: Sequence[int], values: Sequence[float | None]) -> None:
        """Enter the values of new nodes; a chain that was cut, or whose score failed, has none."""
        stops, entered, state = self._tree.stop_code, self.value, self.state
        for node, value in zip(nodes, values, strict=True):
            if value is not None:
                if stops[node] == _STEP:
                    entered[node] = value
                elif stops[node] == _EOS:
                    entered[node] = value
                    state[node] = FINISHED

    def make_ready(self, nodes: Sequence[int], *, width: int, max_depth: int) -> None:
        """Let the next visit expand new nodes, given with parents before children.

        Not so nodes that are finished, lie at the depth limit, or have no value or `width` children
        already; and what is below a node without a value is not searched.
        """
        tree, state, value = self._tree, self.state, self.value
        for node in nodes:
            if state[node] != CLOSED or state[tree.parent[node]] == CLOSED:
                continue
            has_room = tree.last_child[node] < 0 or tree.num_children(node) < width
            if has_room and tree.depth[node] < max_depth and value[node] == value[node]:  # not NaN
                state[node] = READY

    def land(self, leaf: int, news: Sequence[int]) -> None:
        """The simulation that selected `leaf` is over.

        Args:
            leaf: the node.
            news: the nodes that it added below `leaf`, parents before children.
        """
        state, opened, parents = self.state, self.open, self._tree.parent
        if state[leaf] == EXPANDING:
            state[leaf] = CLOSED
        total: float = 0  # whole; columns are typed as numbers
        for node in reversed(news):
            if state[node] == READY:
                opened[node] += 1
            parent = parents[node]
            if parent == leaf:
                total += opened[node]
            else:
                opened[parent] += opened[node]
        self._pass(leaf, flying=-1, opened=total)

    def reopen(self, node: int) -> None:
        """A node that was expanded may be expanded once more."""
        self.state[node] = READY
        self._pass(node, flying=0, opened=1)

    def back_up(self, node: int, value: float) -> None:
        """Count a visit to `node` and its ancestors, and with it the value that it found."""
        parent, visits, values = self._tree.parent, self.visits, self.value
        while node >= 0:
            visits[node] += 1
            if not self.backs_up_max:
                count = visits[node]
                values[node] = (
                    value if count == 1 else values[node] + (value - values[node]) / count
                )
            node = parent[node]

    def refresh_max(self, node: int) -> None:
        """Work out the best child's value afresh for `node` and its ancestors."""
        parent, values = self._tree.parent, self.value
        while node >= 0:
            values[node] = self._best_value(node)
            node = parent[node]

    def _best_value(self, node: int) -> float:
        """The highest value of the children that can be visited; of all when none can.

        A node without children keeps its own; NaN when no child has a value.
        """
        value, before = self.value, self._tree.prev_sibling
        child = self._tree.last_child[node]
        if child < 0:
            return value[node]
        best = best_live = -math.inf
        while child >= 0:
            if value[child] > best:  # NaN is not
                best = value[child]
            if value[child] > best_live and self._is_live(child):
                best_live = value[child]
            child = before[child]
        if best_live > -math.inf:
            return best_live
        return best if best > -math.inf else math.nan

    def _is_live(self, node: int) -> bool:
        return bool(self.open[node] or self.in_flight[node] or self.state[node] == FINISHED)

    def _pass(self, node: int, *, flying: int, opened: float) -> None:
        """Add to the counters of `node` and its ancestors."""
        parent, in_flight, opens = self._tree.parent, self.in_flight, self.open
        while node >= 0:
            in_flight[node] += flying
            if opened:
                opens[node] += opened
            node = parent[node]
