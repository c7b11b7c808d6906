"""Is a tree that was read from outside one that a search could have grown?"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepsearch.search.errors import TraceError
from stepsearch.search.steps import STOP_CODES
from stepsearch.search.tree import FAILED, NO_NODE, SCORED, UNSCORED, ScoreColumn, Tree

_PER_NODE = (
    *("parent", "child_index", "depth", "last_child", "prev_sibling"),
    *("num_tokens", "stop_code", "logprob"),
)


def require_whole(tree: Tree) -> None:
    """Check that columns fit together, links lead where they should and scores are scores.

    Takes some ten nanoseconds a node.

    Raises:
        TraceError: what is wrong.
    """
    _require_lengths(tree)
    _require_links(tree)
    _require_steps(tree)
    for name, column in tree.scores.items():
        _require_scores(tree, name, column)


def _require_lengths(tree: Tree) -> None:
    size = len(tree.parent)
    lengths = {len(getattr(tree, name)) for name in _PER_NODE} | {len(tree.texts)}
    lengths |= {len(tree.offset) - 1}
    lengths |= {len(column.data) for column in tree.columns.values()}
    _require(size > 0 and lengths == {size}, "the columns of the tree have different lengths")


def _require_links(tree: Tree) -> None:
    """Parents come before children, and the lists of children hold each of them once."""
    size = len(tree.parent)
    parent, depth = np.frombuffer(tree.parent, np.int32), np.frombuffer(tree.depth, np.int32)
    _require(parent[0] == NO_NODE and depth[0] == 0, "node 0 is not the root")
    above, nodes = parent[1:], np.arange(1, size, dtype=np.int32)
    _require(_all((above >= 0) & (above < nodes)), "a parent does not stand before its child")
    _require(_all(depth[1:] == depth[above] + 1), "the depth of a node is not its parent's plus 1")
    before = np.frombuffer(tree.prev_sibling, np.int32)
    place = np.frombuffer(tree.child_index, np.int32)
    last = np.frombuffer(tree.last_child, np.int32)
    is_first = before[1:] == NO_NODE
    _require(_all((before >= NO_NODE) & (before < np.arange(size))), "siblings are out of order")
    good = np.where(
        is_first,
        place[1:] == 0,
        (parent[before[1:]] == above) & (place[1:] == place[before[1:]] + 1),
    )
    _require(_all(good), "a node and its sibling do not fit together")
    _require(_all((last >= NO_NODE) & (last < size)), "the last child of a node does not exist")
    counts = np.bincount(above, minlength=size)
    has = last >= 0
    _require(_all(counts[~has] == 0), "a node has children but no last child")
    ends = last[has]
    good = (parent[ends] == np.flatnonzero(has)) & (place[ends] + 1 == counts[has])
    _require(_all(good), "the last child of a node is not its last")


def _require_steps(tree: Tree) -> None:
    """Texts are texts, ids belong to steps, and steps ended for a reason that exists."""
    _require(isinstance(tree.question, str) and isinstance(tree.prompt, str), "no question")
    _require(set(map(type, tree.texts)) == {str}, "the text of a step is none")
    offset = np.frombuffer(tree.offset, np.int64)
    _require(offset[0] == 0 and offset[-1] == len(tree.tokens), "ids without a step")
    _require(_all(offset[1:] >= offset[:-1]), "the ids of steps overlap")
    _require(min(tree.num_tokens) >= 0, "a step of less than no tokens")
    codes = np.frombuffer(tree.stop_code, np.int8)
    _require(_all((codes >= 0) & (codes < len(STOP_CODES))), "an unknown stop")
    whole, size = tree.num_whole, len(tree.parent)
    is_count = whole is None or (type(whole) is int and 0 < whole <= size)
    _require(is_count, f"num_whole is {whole!r}")


def _require_scores(tree: Tree, name: str, column: ScoreColumn) -> None:
    size, where = len(tree.parent), f"scores {name!r}: "
    lengths = {len(column.values), len(column.status)}
    _require(lengths == {size}, f"{where}the columns of the tree have different lengths")
    status = np.frombuffer(column.status, np.int8)
    values = np.frombuffer(column.values)
    known = (status == UNSCORED) | (status == SCORED) | (status == FAILED)
    _require(_all(known), f"{where}an unknown status")
    _require(_all(np.isfinite(values[status == SCORED])), f"{where}a score is not a number")
    failed = np.flatnonzero(status == FAILED).tolist()
    _require(set(failed) <= set(column.failures), f"{where}a failure without a reason")
    for node, failure in column.failures.items():
        is_told = _is_node(node, size) and isinstance(failure.message, str)
        _require(is_told, f"{where}a failure of node {node!r}")
    for node, note in column.notes.items():
        _require(_is_node(node, size) and isinstance(note, str), f"{where}a note on node {node!r}")
    _require_lists(tree.depth, column.per_leaf, where)


def _require_lists(
    depth: array[int], per_leaf: Mapping[int, tuple[float, ...]], where: str
) -> None:
    for node, scores in per_leaf.items():
        good = (
            _is_node(node, len(depth))
            and len(scores) <= depth[node]
            and all(type(score) in (int, float) and math.isfinite(score) for score in scores)
        )
        _require(good, f"{where}the scores of the chain to node {node!r}")


def _is_node(node: Any, size: int) -> bool:
    return type(node) is int and 0 <= node < size


def _all(good: NDArray[np.bool_]) -> bool:
    return bool(good.all())


def _require(good: Any, message: str) -> None:
    if not good:
        raise TraceError(f"the tree of the trace is damaged: {message}")
