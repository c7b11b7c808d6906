"""Replay: going on from a saved search.

A search is determined by its settings. So it is run again from its start, and what it asks for is
taken from the saved tree for as long as it is there: the models are not asked, the algorithm needs
no state of its own in the trace, and what comes out is what a search gives that was never
interrupted. The price is the host's time, some ten microseconds a node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stepsearch.search.contracts import SamplingParams
from stepsearch.search.errors import ConfigurationError, TraceError
from stepsearch.search.steps import STOP_CODES, StepColumns
from stepsearch.search.tree import Tree
from stepsearch.search.types import Budget

_STEP = STOP_CODES["step"]
_SAME = ("stepsearch", "policy", "verifier", "task", "aggregation", "sampling", "seed")


class Replay:
    """The continuations of a saved tree, in the order in which they entered it.

    Args:
        saved: the tree; what budget or interruption disturbed in it is left out.
    """

    def __init__(self, saved: Tree) -> None:
        self._saved = saved
        self._next = 1
        self._end = len(saved) if saved.num_whole is None else saved.num_whole

    def take(self, parents: Sequence[int], params: SamplingParams) -> list[range]:
        """The nodes of as many continuations as are there, in order.

        Args:
            parents: the node that each continues.
            params: how they are asked for.

        Raises:
            TraceError: the saved search asked for something else at this point.
        """
        found = []
        limit = 1 if params.until == "step" else params.max_steps
        for parent in parents:
            start = self._next
            if start >= self._end:
                break
            if self._saved.parent[start] != parent:
                raise TraceError(
                    f"the saved search continued node {self._saved.parent[start]} where this one "
                    f"continues node {parent}: it is another search, and cannot be resumed"
                )
            stop = self._stop(start, limit)
            if stop > self._end:
                break
            found.append(range(start, stop))
            self._next = stop
        return found

    def _stop(self, start: int, limit: int) -> int:
        """The node after a continuation of at most `limit` steps."""
        stop = start + 1
        codes = self._saved.stop_code
        while stop < start + limit and stop <= self._end and codes[stop - 1] == _STEP:
            stop += 1
        return stop

    def copy(self, tree: Tree, nodes: range, *, with_scores: bool) -> None:
        """Append saved nodes to a tree, which must have all nodes before them."""
        saved = self._saved
        steps: StepColumns = saved.part(nodes.start, nodes.stop)
        tree.extend(saved.parent[nodes.start : nodes.stop], steps)
        if not with_scores:
            return
        for name, column in saved.scores.items():
            own, at = tree.score_column(name), slice(nodes.start, nodes.stop)
            own.values[at], own.status[at] = column.values[at], column.status[at]
            for mine, theirs in (
                (own.failures, column.failures),
                (own.notes, column.notes),
                (own.per_leaf, column.per_leaf),
            ):
                mine.update({node: theirs[node] for node in nodes if node in theirs})  # type: ignore


def require_resumable(
    saved: Mapping[str, Any], now: Mapping[str, Any], grows: Sequence[str]
) -> None:
    """Check that a search with these settings begins as the saved one did.

    Args:
        saved: the provenance of the trace.
        now: that of the engine.
        grows: parameters of the strategy that may be larger than before.

    Raises:
        ConfigurationError: a setting differs, or a limit is smaller than before.
    """
    now = json.loads(json.dumps(now))
    for name in _SAME:
        if saved.get(name) != now[name]:
            raise ConfigurationError(
                f"{name} differs from that of the trace, which has {saved.get(name)!r}; "
                "resume with the same, or solve the problem anew"
            )
    old, new = dict(saved["strategy"]), dict(now["strategy"])
    for name in grows:
        _require_not_less(f"search.{name}", old.pop(name, None), new.pop(name, None))
    if old != new:
        allowed = (
            f"only {', '.join(grows)} may grow" if grows else "none of its settings may change"
        )
        raise ConfigurationError(
            f"search differs from that of the trace, which has {saved['strategy']!r}; {allowed}"
        )
    for name in asdict(Budget()):
        _require_not_less(f"budget.{name}", saved["budget"][name], now["budget"][name])


def _require_not_less(name: str, old: float | None, new: float | None) -> None:
    if new is not None and (old is None or new < old):
        limit = "no limit" if old is None else old
        raise ConfigurationError(f"{name}={new} must not be less than in the trace, {limit}")
