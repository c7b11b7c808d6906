"""The search tree: columns indexed by node id, and chains, which are views of its paths.

A node is an `int`; node 0 is the root and has no step. Nothing is copied or deleted: pruning means
not going on. Columns are growing arrays (appended in nanoseconds, 4 or 8 bytes an entry).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.steps import STOP_CODES, StepColumns
from stepsearch.search.types import Step

ROOT = 0
NO_NODE = -1
UNSCORED, SCORED, FAILED = 0, 1, 2
_CONTINUABLE = STOP_CODES["step"]
_ROOT_STEP = Step(text="", logprob=0.0)
_NANS = array("d", [math.nan])
_UNSCORED = array("b", [UNSCORED])


class ScoreColumn:
    """One verifier's scores: a number and a status per node, and why scoring failed.

    The status is `UNSCORED`, `SCORED` or `FAILED`; unless it is `SCORED` the stored value is NaN.

    Attributes:
        per_leaf: for a verifier whose scores of a prefix change as the chain grows, the scores of
            every step of the chain that ends in a node; the column then holds the newest step's.
    """

    __slots__ = ("failures", "notes", "per_leaf", "status", "values")

    def __init__(self, num_nodes: int) -> None:
        self.values = array("d", [math.nan]) * num_nodes
        self.status = array("b", [UNSCORED]) * num_nodes
        self.failures: dict[int, ScoreFailure] = {}
        self.notes: dict[int, str] = {}
        self.per_leaf: dict[int, tuple[float, ...]] = {}

    def set(self, node: int, value: float, note: str = "") -> None:
        """Enter a score."""
        self.values[node] = value
        self.status[node] = SCORED
        if note:
            self.notes[node] = note

    def fail(self, node: int, failure: ScoreFailure) -> None:
        """Enter why there is no score."""
        self.status[node] = FAILED
        self.failures[node] = failure

    def note(self, node: int) -> str:
        """What the verifier said about the step, or why scoring failed; may be empty."""
        failure = self.failures.get(node)
        return self.notes.get(node, "") if failure is None else failure.message

    def __getitem__(self, node: int) -> float | None:
        """The node's score; None when it is unscored or scoring failed."""
        return self.values[node] if self.status[node] == SCORED else None


class Column(NamedTuple):
    """A column that an algorithm registered, with the value that new nodes get."""

    data: array[int] | array[float]
    default: int | float


class Tree(StepColumns):
    """A tree of steps: their columns and how they hang together; a step's index is its node's id.

    The root is an empty step that can be continued.

    Attributes:
        question: the question as the user wrote it; what verifiers read.
        prompt: the question in the task's wording; what the policy reads.
        parent: parent of every node, `NO_NODE` for the root.
        child_index: position among its siblings.
        depth: number of steps from the root.
        last_child, prev_sibling: children as a linked list, newest first.
        scores: score columns by verifier name.
        columns: what algorithms registered, by name.
        num_whole: how many nodes, the root included, are those of a search that neither its budget
            nor an interruption disturbed; None means all.
    """

    def __init__(self, question: str, prompt: str | None = None) -> None:
        super().__init__()
        self.append_step(_ROOT_STEP)
        self.question = question
        self.prompt = question if prompt is None else prompt
        self.parent = array("i", [NO_NODE])
        self.child_index = array("i", [0])
        self.depth = array("i", [0])
        self.last_child = array("i", [NO_NODE])
        self.prev_sibling = array("i", [NO_NODE])
        self.scores: dict[str, ScoreColumn] = {}
        self.columns: dict[str, Column] = {}
        self.num_whole: int | None = None

    def add(self, parent: int, step: Step) -> int:
        """Append a step under `parent` and return its node id."""
        self.extend((parent,), StepColumns.of((step,)))
        return len(self) - 1

    def extend(self, parents: Sequence[int], steps: StepColumns) -> None:
        """Append steps; `parents[i]` may be a node that step j with j < i becomes."""
        self._link(parents)
        self.append_steps(steps)
        count = len(steps)
        for column in self.scores.values():
            column.values.extend(_NANS * count)
            column.status.extend(_UNSCORED * count)
        for data, default in self.columns.values():
            data.extend([default] * count)  # type: ignore[list-item]

    def _link(self, parents: Sequence[int]) -> None:
        """Make a new node the newest child of each parent."""
        last_child, prev_sibling = self.last_child, self.prev_sibling
        child_index, depth = self.child_index, self.depth
        for node, parent in enumerate(parents, len(self.parent)):
            newest = last_child[parent]
            prev_sibling.append(newest)
            child_index.append(0 if newest < 0 else child_index[newest] + 1)
            depth.append(depth[parent] + 1)
            last_child[parent] = node
            last_child.append(NO_NODE)
        self.parent.extend(parents)

    def score_column(self, name: str) -> ScoreColumn:
        """The score column of a verifier, made when it does not exist yet."""
        if name not in self.scores:
            self.scores[name] = ScoreColumn(len(self))
        return self.scores[name]

    def column(self, name: str, kind: type[int] | type[float], default: float = 0) -> array[float]:
        """A column that belongs to an algorithm and is saved with the tree.

        Args:
            name: the column's name; the same name gives the same column.
            kind: `int` (64 bit) or `float` (64 bit).
            default: the value of nodes that are added later, and of those there now.
        """
        if name not in self.columns:
            data: array[float] = array("q" if kind is int else "d", [kind(default)])
            self.columns[name] = Column(data * len(self), kind(default))
        return self.columns[name].data  # type: ignore[return-value]

    def num_children(self, node: int) -> int:
        """How many children the node has."""
        last = self.last_child[node]
        return 0 if last < 0 else self.child_index[last] + 1

    def children(self, node: int) -> list[int]:
        """The node's children, oldest first."""
        found = []
        child = self.last_child[node]
        while child >= 0:
            found.append(child)
            child = self.prev_sibling[child]
        return found[::-1]

    def path(self, node: int) -> list[int]:
        """Nodes from below the root down to `node`; empty for the root."""
        found = []
        while node > 0:
            found.append(node)
            node = self.parent[node]
        return found[::-1]

    def is_terminal(self, node: int) -> bool:
        """Whether the chain that ends here cannot go on."""
        return self.stop_code[node] != _CONTINUABLE

    def terminals(self) -> list[int]:
        """Nodes whose chains cannot go on, in the order they were added."""
        return [n for n, code in enumerate(self.stop_code) if code != _CONTINUABLE]

    def chain(self, node: int, tail: tuple[Step, ...] = (), num_new: int = -1) -> Chain:
        """The chain that ends in `node`, prolonged by steps that are not in the tree yet."""
        return Chain(self, node, tail, len(tail) if num_new < 0 else num_new)

    def leaves(self) -> Iterator[int]:
        """Nodes without children, the root excluded, in the order they were added."""
        return (n for n in range(1, len(self)) if self.last_child[n] < 0)


class Chain:
    """The path from the root to a node, and steps that follow it but are not in the tree yet.

    Attributes:
        tree: the tree it belongs to.
        node: its last node in the tree.
        tail: steps that follow the node.
        num_new: how many of its newest steps await a score; the others have theirs already.
    """

    __slots__ = ("node", "num_new", "tail", "tree")

    def __init__(self, tree: Tree, node: int, tail: tuple[Step, ...] = (), num_new: int = 0):
        self.tree = tree
        self.node = node
        self.tail = tail
        self.num_new = num_new

    @property
    def question(self) -> str:
        """The question as the user wrote it."""
        return self.tree.question

    @property
    def prompt(self) -> str:
        """The question in the task's wording."""
        return self.tree.prompt

    def __len__(self) -> int:
        return self.tree.depth[self.node] + len(self.tail)

    @property
    def newest(self) -> Step:
        """The last step. Raises `IndexError` for a chain without steps."""
        if self.tail:
            return self.tail[-1]
        if self.node == ROOT:
            raise IndexError("the chain has no steps yet")
        return self.tree.step(self.node)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps from the first to the last."""
        return (*map(self.tree.step, self.tree.path(self.node)), *self.tail)

    @property
    def texts(self) -> list[str]:
        """The text of every step."""
        texts = self.tree.texts
        found = [texts[node] for node in self.tree.path(self.node)]
        found += [step.text for step in self.tail]
        return found

    @property
    def text(self) -> str:
        """The exact text of the chain, without the prompt."""
        return "".join(self.texts)

    @property
    def token_ids(self) -> list[int]:
        """The sampled ids of the chain, without the prompt."""
        ids: list[int] = []
        for node in self.tree.path(self.node):
            ids.extend(self.tree.token_ids(node))
        for step in self.tail:
            ids.extend(step.token_ids)
        return ids
