"""Continuous batching of the rows of one adapter: they join and leave at any token."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stepsearch.policies.kv_pool import KvPool, Segment, slots_of
from stepsearch.policies.kv_slots import SlotBuffers
from stepsearch.policies.model import CausalModel
from stepsearch.policies.prefill import Prefiller, Prefix
from stepsearch.policies.prefix_cache import PrefixCache
from stepsearch.policies.sampling import Draw, Token, sample
from stepsearch.search.errors import PolicyError

COLUMN_BLOCK = 512
"""Buffers grow by whole blocks: attention kernels walk blocks, so masked ones change no bit."""


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """A sequence that is fed token by token.

    Attributes:
        prefix: what it starts from; pinned while the row lives.
        draw: how to sample what follows; None to feed the prefix only.
        on_token: told every sampled token; False ends the row.
        on_end: called once, with what went wrong or None.
        ids: the prefix and what was sampled.
        num_fed: how many of them have keys and values in the row's slot.
        num_cached: how many of those are in the prefix cache.
    """

    prefix: Prefix
    draw: Draw | None
    on_token: Callable[[Token], bool]
    on_end: Callable[[Exception | None], None]
    ids: list[int] = field(default_factory=list)
    num_fed: int = 0
    num_cached: int = 0


class DecodeGroup:
    """The rows of one adapter.

    Args:
        model: what computes.
        prefiller: owns the prefixes.
        cache: where prefixes come from and the keys and values of ended rows go.
        pool: what the cache's segments lie in.
        adapter: the adapter of all rows.
        max_rows: most rows at once.
        fixed_shapes: every pass has `max_rows` rows over whole column blocks.

    Attributes:
        rows: what runs.
        waiting: what has a computed prefix and waits for room.
    """

    def __init__(
        self,
        model: CausalModel,
        prefiller: Prefiller,
        cache: PrefixCache[Segment],
        pool: KvPool,
        adapter: str | None,
        max_rows: int,
        fixed_shapes: bool,
    ) -> None:
        self.waiting: deque[Row] = deque()
        self.rows: list[Row] = []
        self._model = model
        self._prefiller = prefiller
        self._cache = cache
        self._pool = pool
        self._adapter = adapter
        self.max_rows = max_rows
        self._fixed = fixed_shapes
        self._buffers = SlotBuffers(model.shapes, model.dtype, model.device)

    @property
    def num_sampling(self) -> int:
        """Rows that sample now."""
        return sum(row.draw is not None for row in self.rows)

    def work(self) -> None:
        """Let rows join, and advance every row by one token."""
        self._drop_cancelled()
        # With fixed shapes one row is kept for a prefix.
        room = self.max_rows - self._fixed
        while self.waiting and self.num_sampling < room:
            self._join(self.waiting.popleft())
        if ready := [i for i, row in enumerate(self.rows) if row.num_fed == len(row.ids)]:
            self._advance(ready)
        if not self.rows:
            return
        try:
            self._feed()
        except Exception as error:
            self._fail_all(error)
            return
        self._advance([i for i, row in enumerate(self.rows) if row.num_fed == len(row.ids)])

    def feed_prefix(self, prefix: Prefix) -> None:
        """Compute the rest of a prefix beside the rows, one token at a time."""
        self._prefiller.hold(prefix)

        def end(error: Exception | None) -> None:
            self._prefiller.let_go(prefix)
            if error is not None:
                self._prefiller.fail(prefix, error)

        self._join(Row(prefix=prefix, draw=None, on_token=lambda _: False, on_end=end))

    def _join(self, row: Row) -> None:
        match = row.prefix.match
        assert match is not None
        row.ids, row.num_fed = list(row.prefix.ids), match.length
        row.num_cached = match.length
        self._reserve(len(self.rows) + 1, len(row.ids) + 1)
        slots = slots_of(self._cache.parts(match))
        self._pool.load_row(self._buffers, len(self.rows), slots)
        self.rows.append(row)

    def _reserve(self, rows: int, columns: int) -> None:
        blocks = -(-columns // COLUMN_BLOCK) * COLUMN_BLOCK
        room = self.max_rows if self._fixed else 1 << (rows - 1).bit_length()
        self._buffers.reserve(max(room, rows), blocks)

    def _feed(self) -> None:
        """One pass over the next token of every row."""
        rows = self.rows
        longest = max(row.num_fed for row in rows) + 1
        self._reserve(len(rows), longest)
        count = self.max_rows if self._fixed else len(rows)
        width = self._buffers.num_columns if self._fixed else longest
        idle = count - len(rows)
        device = self._model.device
        ids = torch.tensor([[row.ids[row.num_fed]] for row in rows] + [[0]] * idle, device=device)
        fed = torch.tensor([[row.num_fed] for row in rows] + [[0]] * idle, device=device)
        allowed = torch.arange(width, device=device)[None, None] <= fed[:, :, None]
        self._model.forward(ids, fed, allowed, fed, self._buffers, self._adapter)
        for row in rows:
            row.num_fed += 1
            if row.draw is None:
                row.prefix.computed += 1

    def _advance(self, indices: list[int]) -> None:
        """Sample the next token of rows that are fed up to their end, or let them leave."""
        try:
            outcomes = self._sample(indices)
        except Exception as error:
            self._fail_all(error)
            return
        # From the last on, since a row that leaves is replaced by the last one.
        for index, outcome in sorted(outcomes.items(), reverse=True):
            row = self.rows[index]
            try:
                if row.draw is None:
                    goes_on = False
                elif outcome is None:
                    raise PolicyError(
                        "the model's logits are not finite after token"
                        f" {len(row.ids)}; use dtype=float32 or bfloat16"
                    )
                else:
                    row.ids.append(outcome.id)
                    goes_on = row.on_token(outcome)
            except Exception as error:
                self._leave(index, error)
            else:
                if not goes_on:
                    self._leave(index, None)

    def _sample(self, indices: list[int]) -> dict[int, Token | None]:
        """The next token of every row that samples; None where logits are not finite."""
        result: dict[int, Token | None] = dict.fromkeys(indices)
        drawing = [i for i in indices if self.rows[i].draw is not None]
        if not drawing:
            return result
        hidden = self._last_hidden(drawing)
        logits = self._model.logits(hidden, self._adapter)
        if self._fixed:
            logits = logits[torch.tensor(drawing, device=logits.device)]
        draws = [d for i in drawing if (d := self.rows[i].draw) is not None]
        offsets = [len(self.rows[i].ids) - len(self.rows[i].prefix.ids) for i in drawing]
        result.update(zip(drawing, sample(logits, draws, offsets), strict=True))
        return result

    def _last_hidden(self, indices: list[int]) -> Tensor:
        device = self._model.device
        chosen = list(range(self.max_rows)) if self._fixed else indices
        last = [self.rows[i].num_fed - 1 if i < len(self.rows) else 0 for i in chosen]
        rows = torch.tensor(chosen, device=device)
        return self._buffers.hidden[rows, torch.tensor(last, device=device)]

    def _drop_cancelled(self) -> None:
        for index in reversed(range(len(self.rows))):
            if self.rows[index].prefix.is_cancelled():
                self._leave(index, None)
        for _ in range(len(self.waiting)):
            row = self.waiting.popleft()
            if row.prefix.is_cancelled():
                self._prefiller.release(row.prefix)
            else:
                self.waiting.append(row)

    def _leave(self, index: int, error: Exception | None) -> None:
        """Take a row out; what it computed stays in the prefix cache as far as it is finite."""
        row, last = self.rows[index], len(self.rows) - 1
        start = row.num_cached
        hidden = self._buffers.hidden[index, start : row.num_fed]
        stop = start + int(torch.isfinite(hidden).all(-1).int().cumprod(0).sum())
        if stop > start:
            columns = np.arange(start, stop)
            slots = self._pool.store(self._buffers, np.full_like(columns, index), columns)
            ids = tuple(row.ids[:stop])
            self._cache.insert(self._adapter, ids, start, Segment(self._pool, slots))
        if stop < row.num_fed:
            if row.draw is None:
                row.prefix.num_finite = stop
            self._buffers.erase(index)
        if index != last:
            self._buffers.move(last, index, self.rows[last].num_fed)
            self.rows[index] = self.rows[last]
            if self.rows[last].draw is None:  # it stays until it is fed, finite or not
                self._buffers.erase(last)
        self.rows.pop()
        if row.draw is not None:
            self._prefiller.release(row.prefix)
        row.on_end(error)

    def _fail_all(self, error: Exception) -> None:
        for index in reversed(range(len(self.rows))):
            self._leave(index, error)
