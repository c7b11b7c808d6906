"""A radix tree of key/value segments by token prefix, limited in bytes.

As in RadixAttention (Zheng et al. 2024, SGLang): an edge holds the ids of a run of tokens and the
payload computed for them. It knows nothing of tensors: a payload can be split and says its size.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, Self, TypeVar


class Payload(Protocol):
    """What was computed for a run of tokens, one entry per token."""

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        ...

    def split(self, at: int) -> tuple[Self, Self]:
        """The first `at` entries and the others, which take its place."""
        ...

    def release(self) -> None:
        """Told when nobody needs it any more."""
        ...


P = TypeVar("P", bound=Payload)


class Node(Generic[P]):
    """An edge of the tree and the point where it ends; a root has no tokens and no payload."""

    __slots__ = ("children", "ids", "last_used", "length", "parent", "payload", "pins")

    def __init__(self, parent: Node[P] | None, ids: tuple[int, ...], payload: P | None):
        self.parent = parent
        self.ids = ids
        self.payload = payload
        self.length: int = len(ids) + (parent.length if parent is not None else 0)
        self.children: dict[int, Node[P]] = {}
        self.pins = 0
        self.last_used = 0

    @property
    def start(self) -> int:
        """Depth in tokens at which the edge begins."""
        return self.length - len(self.ids)


class Match(NamedTuple, Generic[P]):
    """The longest cached prefix of a sequence: it ends inside, or at the end of, `node`."""

    node: Node[P]
    length: int


class Part(NamedTuple, Generic[P]):
    """The first `length` entries of a payload, which belong at depth `start`."""

    payload: P
    start: int
    length: int


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])


class PrefixCache(Generic[P]):
    """Payloads of token prefixes, one tree per key, least recently used leaves evicted first.

    Not thread-safe. Pinned nodes and what leads to them are never evicted, so `num_bytes` exceeds
    `limit_bytes` while more than that is pinned.

    Attributes:
        limit_bytes: what the payloads may hold together.
        num_bytes: what they hold.
    """

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ValueError(f"cache_bytes={limit_bytes} must not be negative; 0 keeps nothing")
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self._roots: dict[str | None, Node[P]] = {}
        self._clock = 0

    def match(
        self, key: str | None, ids: tuple[int, ...], known: Match[P] | None = None
    ) -> Match[P]:
        """The longest cached prefix of `ids`; counts as a use.

        Args:
            key: the tree.
            ids: the sequence.
            known: an earlier match of it that was pinned since; the search goes on from there.
        """
        node, position = known or Match(self._roots.setdefault(key, Node(None, (), None)), 0)
        while node.parent is not None and node.start >= position:
            node = node.parent  # the edge was split since
        self._clock += 1
        while True:
            node.last_used = self._clock
            if position < node.length or position == len(ids):
                return Match(node, position)
            child = node.children.get(ids[position])
            if child is None:
                return Match(node, position)
            position += common_prefix(child.ids, ids[position : position + len(child.ids)])
            node = child

    def parts(self, match: Match[P]) -> list[Part[P]]:
        """The payloads of a match, from the root on."""
        found = []
        node: Node[P] = match.node
        while node.parent is not None:
            assert node.payload is not None
            length = min(node.length, match.length) - node.start
            if length > 0:  # the edge may have been split above the match since it was made
                found.append(Part(node.payload, node.start, length))
            node = node.parent
        return found[::-1]

    def insert(self, key: str | None, ids: tuple[int, ...], start: int, payload: P) -> Match[P]:
        """Add the payload of `ids[start:]`; what is cached already stays, what is new is added.

        Nothing is added when the prefix before `start` is not cached. What is not added is
        released. Nothing is evicted: call `evict` when the pins are set.
        """
        match = self.match(key, ids)
        node, length = match
        if length < start or length == len(ids):
            payload.release()
            return match
        if length < node.length:
            node = self._split(node, length)
        if length > start:
            known, payload = payload.split(length - start)
            known.release()
        child = Node(node, ids[length:], payload)
        child.last_used = self._clock
        node.children[ids[length]] = child
        self.num_bytes += payload.num_bytes
        return Match(child, len(ids))

    def _split(self, node: Node[P], length: int) -> Node[P]:
        """Cut an edge at depth `length`. `node` keeps the lower part, and so its pins."""
        assert node.parent is not None
        assert node.payload is not None
        cut = length - node.start
        first, node.payload = node.payload.split(cut)
        upper = Node(node.parent, node.ids[:cut], first)
        upper.last_used = node.last_used
        node.parent.children[upper.ids[0]] = upper
        node.parent, node.ids = upper, node.ids[cut:]
        upper.children[node.ids[0]] = node
        return upper

    def pin(self, node: Node[P]) -> None:
        """Protect a node and everything above it; pins are counted."""
        node.pins += 1

    def unpin(self, node: Node[P]) -> None:
        """Take one pin back."""
        assert node.pins > 0
        node.pins -= 1

    def evict(self) -> None:
        """Drop least recently used, unpinned leaves when the limit is exceeded.

        Goes down to nine tenths of the limit, so that the leaves are not sorted at every call.
        """
        if self.num_bytes <= self.limit_bytes:
            return
        serial = itertools.count()  # nodes have no order
        heap = [(n.last_used, next(serial), n) for n in self._leaves() if not n.pins]
        heapq.heapify(heap)
        while heap and self.num_bytes > 0.9 * self.limit_bytes:
            node = heapq.heappop(heap)[2]
            parent = node.parent
            assert parent is not None
            assert node.payload is not None
            del parent.children[node.ids[0]]
            self.num_bytes -= node.payload.num_bytes
            node.payload.release()
            if parent.parent is not None and not parent.children and not parent.pins:
                heapq.heappush(heap, (parent.last_used, next(serial), parent))

    def nodes(self) -> Iterator[Node[P]]:
        """All nodes that hold a payload."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.payload is not None:
                yield node

    def _leaves(self) -> Iterator[Node[P]]:
        return (n for n in self.nodes() if not n.children)
