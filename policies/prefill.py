"""Making prefixes resident in the prefix cache, each distinct token computed once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stepsearch.policies.kv_pool import KvPool, Segment, Slots, slots_of
from stepsearch.policies.kv_slots import SlotBuffers
from stepsearch.policies.model import CausalModel
from stepsearch.policies.packing import TokenTrie
from stepsearch.policies.prefix_cache import Match, PrefixCache

_PASS_FLOPS = 8e12
"""A pass of less takes an accelerator hardly less time: launching kernels is what it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """How large one forward pass may be.

    Attributes:
        tokens: most tokens, padding included.
        num_bytes: of keys, values and hidden states that the pass looks at, unless of one row.
        padding: share that may be padding; rows that differ more go into separate passes.
    """

    tokens: int = 1024
    num_bytes: int = 2 << 30
    padding: float = 0.25

    @classmethod
    def of(cls, model: CausalModel) -> PassLimits:
        """Small on a CPU; on an accelerator so large that the fixed cost of a pass is shared."""
        if model.device.type == "cpu":
            return cls()
        tokens = int(_PASS_FLOPS / (2 * model.num_parameters))
        return cls(tokens=min(max(tokens, cls().tokens), 8 * cls().tokens), padding=0.5)


@dataclass(slots=True, kw_only=True, eq=False)
class Prefix:
    """A sequence that somebody wants computed.

    Attributes:
        ids: the sequence.
        adapter: what it is computed with.
        on_ready: called when all of it is cached; it is pinned until `release`.
        on_error: called instead when it cannot be computed.
        is_cancelled: asked before every pass.
        computed: tokens computed for it so far; what it shares with others is counted once.
        match: what is cached of it, pinned.
        num_finite: tokens before the first whose state is not finite; the rest is not cached.
    """

    ids: tuple[int, ...]
    adapter: str | None
    on_ready: Callable[[Prefix], None]
    on_error: Callable[[Exception], None]
    is_cancelled: Callable[[], bool]
    computed: int = 0
    match: Match[Segment] | None = None
    num_finite: int | None = None

    @property
    def num_cached(self) -> int:
        """Length of the pinned match."""
        return 0 if self.match is None else self.match.length

    @property
    def reused(self) -> int:
        """Tokens that were not computed for it; what was computed twice is not less than none."""
        return max(0, len(self.ids) - self.computed)

    @property
    def num_missing(self) -> int:
        """Tokens that must still be computed."""
        return 0 if self.num_finite is not None else len(self.ids) - self.num_cached


@dataclass(slots=True, kw_only=True, eq=False)
class _Row:
    """Prefixes that continue the same cached prefix, packed together."""

    match: Match[Segment]
    trie: TokenTrie = field(default_factory=TokenTrie)
    members: list[tuple[Prefix, int, int]] = field(default_factory=list)

    def add(self, prefix: Prefix, stop: int) -> None:
        """Take in tokens up to `stop`; members are (prefix, stop, first new token)."""
        size = len(self.trie)
        shared = self.trie.add(prefix.ids[self.match.length : stop])
        self.members.append((prefix, stop, shared if len(self.trie) > size else -1))


class Prefiller:
    """Computes waiting prefixes in large passes.

    Args:
        model: what computes.
        cache: where results go.
        pool: what the cache's segments lie in.
    """

    def __init__(self, model: CausalModel, cache: PrefixCache[Segment], pool: KvPool) -> None:
        self.waiting: deque[Prefix] = deque()
        self._held: set[tuple[str | None, tuple[int, ...]]] = set()
        self._model = model
        self._cache = cache
        self._pool = pool
        self.limits = PassLimits.of(model)
        self._buffers = SlotBuffers(model.shapes, model.dtype, model.device)

    def refresh(self, prefix: Prefix) -> None:
        """Look up what is cached by now, and pin it."""
        match = self._cache.match(prefix.adapter, prefix.ids, prefix.match)
        if match == prefix.match:
            return
        self._cache.pin(match.node)
        if prefix.match is not None:
            self._cache.unpin(prefix.match.node)
        prefix.match = match

    def release(self, prefix: Prefix) -> None:
        """Take the pin back; evicts nothing yet."""
        if prefix.match is not None:
            self._cache.unpin(prefix.match.node)
            prefix.match = None

    def hold(self, prefix: Prefix) -> None:
        """Leave a prefix and its twins to somebody who computes it elsewhere."""
        self._held.add((prefix.adapter, prefix.ids))

    def let_go(self, prefix: Prefix) -> None:
        """End a hold."""
        self._held.discard((prefix.adapter, prefix.ids))

    @property
    def is_holding(self) -> bool:
        """Whether any prefix is computed elsewhere."""
        return bool(self._held)

    def is_held(self, prefix: Prefix) -> bool:
        """Whether somebody else computes it."""
        return bool(self._held) and (prefix.adapter, prefix.ids) in self._held

    def fail(self, prefix: Prefix, error: Exception) -> None:
        """Give a prefix up."""
        if prefix in self.waiting:
            self.waiting.remove(prefix)
        self.release(prefix)
        prefix.on_error(error)

    def settle(self) -> None:
        """Hand out what is complete and forget what was cancelled."""
        wanted, self.waiting = self.waiting, deque()
        for prefix in wanted:
            if not self.is_held(prefix):
                self.refresh(prefix)
            if prefix.is_cancelled():
                self.release(prefix)
            elif prefix.num_missing or self.is_held(prefix):
                self.waiting.append(prefix)
            else:
                prefix.on_ready(prefix)

    def work(self) -> None:
        """One pass over what waits, in order of arrival, for the adapter of the first."""
        rows = self._pack()
        while rows:
            batch = rows[: self._num_fitting(rows)]
            rows = rows[len(batch) :]
            self._run_or_split(batch)
        self.settle()

    def _num_fitting(self, rows: list[_Row]) -> int:
        """How many of the rows, longest first, make one forward pass."""
        limits, shapes = self.limits, self._model.shapes
        widest, columns = len(rows[0].trie), 0
        for count, row in enumerate(rows):
            columns = max(columns, row.match.length + widest)
            num_bytes = (count + 1) * columns * shapes.num_values * self._model.dtype.itemsize
            is_too_large = (count + 1) * widest > limits.tokens or num_bytes > limits.num_bytes
            if count and (is_too_large or len(row.trie) < (1 - limits.padding) * widest):
                return count
        return len(rows)

    def _pack(self) -> list[_Row]:
        """Rows for the next pass, longest first."""
        rows: dict[tuple[int, int], _Row] = {}
        room = self.limits.tokens
        free = [p for p in self.waiting if not self.is_held(p)]
        for prefix in free:
            if room <= 0 or prefix.adapter != free[0].adapter:
                continue
            match = prefix.match
            assert match is not None
            row = rows.setdefault((id(match.node), match.length), _Row(match=match))
            size = len(row.trie)
            row.add(prefix, min(len(prefix.ids), match.length + room))
            room -= len(row.trie) - size
        return sorted(rows.values(), key=lambda r: -len(r.trie))

    def _run_or_split(self, rows: list[_Row]) -> None:
        """Run a batch; when it fails, run every prefix alone, so that it fails alone."""
        try:
            hidden = self._run(rows)
        except Exception as error:
            if len(rows) == 1 and len(rows[0].members) == 1:
                self.fail(rows[0].members[0][0], error)
            else:
                self._run_alone(rows)
            return
        finite = torch.isfinite(hidden).all(-1).cpu().numpy()
        sizes = [len(row.trie) for row in rows]
        whole = [bool(finite[i, :size].all()) for i, size in enumerate(sizes)]
        kept = [size * ok for size, ok in zip(sizes, whole, strict=True)]
        for row, slots in zip(rows, self._keep(rows, kept), strict=True):
            if len(slots):
                self._insert(row, slots)
        # A masked NaN spoils what shares its row, even what stands before it.
        for row in (row for row, ok in zip(rows, whole, strict=True) if not ok):
            if len(row.members) == 1:
                self._find_spoilt(row)
            else:
                self._run_alone([row])

    def _run_alone(self, rows: Iterable[_Row]) -> None:
        for row in rows:
            for prefix, stop, _ in row.members:
                self._run_to(prefix, stop)

    def _run_to(self, prefix: Prefix, stop: int) -> None:
        """Compute what is missing of one prefix up to `stop`, in a row of its own."""
        if prefix not in self.waiting:
            return  # it failed meanwhile
        self.refresh(prefix)
        if prefix.num_cached < stop and prefix.num_finite is None:
            assert prefix.match is not None
            alone = _Row(match=prefix.match)
            alone.add(prefix, stop)
            self._run_or_split([alone])

    def _find_spoilt(self, row: _Row) -> None:
        """Halve a row until its first state that is not finite is alone."""
        [(prefix, stop, _)] = row.members
        start = row.match.length
        if stop == start + 1:
            prefix.computed += 1
            prefix.num_finite = start
            return
        self._run_to(prefix, (start + stop) // 2)
        self._run_to(prefix, stop)

    def _run(self, rows: list[_Row]) -> Tensor:
        num_tokens = len(rows[0].trie)
        width = max(row.match.length for row in rows) + num_tokens
        shape = (len(rows), num_tokens)
        ids, depths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        starts = np.array([row.match.length for row in rows])[:, None]
        columns = starts + np.arange(num_tokens)
        # A padding token looks at itself, since a sum over nothing is not a number.
        allowed = columns[:, :, None] == np.arange(width)
        cached = np.zeros((len(rows), width), np.int64)
        for i, row in enumerate(rows):
            size, start = len(row.trie), row.match.length
            ids[i, :size], depths[i, :size] = row.trie.tokens, row.trie.depths
            allowed[i, :size, :start] = True
            allowed[i, :size, start : start + size] = row.trie.visible()
            cached[i, :start] = slots_of(self._cache.parts(row.match))
        self._buffers.lay_out(len(rows), width)
        self._pool.load(self._buffers, cached)
        ids_, positions, allowed_, columns_ = (
            torch.from_numpy(x).to(self._model.device)
            for x in (ids, starts + depths, allowed, columns)
        )
        return self._model.forward(
            ids_, positions, allowed_, columns_, self._buffers, rows[0].members[0][0].adapter
        )

    def _keep(self, rows: list[_Row], sizes: list[int]) -> list[Slots]:
        """Put the first `sizes` new tokens of every row into the pool, all at once."""
        columns = [
            row.match.length + np.arange(size) for row, size in zip(rows, sizes, strict=True)
        ]
        owners = np.repeat(np.arange(len(rows)), sizes)
        slots = self._pool.store(self._buffers, owners, np.concatenate(columns))
        return np.split(slots, np.cumsum(sizes)[:-1])

    def _insert(self, row: _Row, slots: Slots) -> None:
        """Tell the cache what was computed, of each prefix its own new tokens."""
        for prefix, stop, shared in row.members:
            if shared < 0:
                continue
            first = row.match.length + shared
            own, slots = slots[: stop - first], slots[stop - first :]
            self._cache.insert(prefix.adapter, prefix.ids[:stop], first, Segment(self._pool, own))
            prefix.computed += stop - first
