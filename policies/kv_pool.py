"""Keys, values and hidden states of cached tokens, in one pool of numbered slots.

As in PagedAttention (Kwon et al. 2023, arXiv:2309.06180) with pages of one token: a cached run of
tokens is a list of slots, so that cutting it copies nothing, and a whole batch of prefixes is read
or written by one operation per tensor, however many runs it is made of. On an accelerator the
operations are what costs, not the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepsearch.policies.kv_slots import Shapes, SlotBuffers
from stepsearch.policies.prefix_cache import Part

Slots = NDArray[np.int64]

_NOWHERE: Slots = np.zeros(1, np.int64)
"""The slot that holds zeros: padding that is read must be finite."""
_FIRST_SLOTS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Where the pool holds what a model computed for a run of tokens."""

    pool: KvPool
    slots: Slots

    @property
    def num_bytes(self) -> int:
        """Bytes of the slots."""
        return len(self.slots) * self.pool.slot_bytes

    def split(self, at: int) -> tuple[Segment, Segment]:
        """The first `at` tokens and the others, instead of this one."""
        return Segment(self.pool, self.slots[:at]), Segment(self.pool, self.slots[at:])

    def release(self) -> None:
        """Give the slots back."""
        self.pool.give_back(self.slots)


class KvPool:
    """Slots for the tokens of one model.

    Takes memory as it fills, an accelerator's at once up to the limit, and keeps what it has until
    `clear`. A new one holds none, so that making one cannot fail. Not thread-safe.

    Args:
        shapes: of what one token leaves behind.
        dtype: of the model.
        device: of the model.
        limit_bytes: it grows in small steps only beyond so many; may be raised.

    Raises:
        MemoryError: an accelerator is full.
    """

    def __init__(
        self, shapes: Shapes, dtype: torch.dtype, device: torch.device, limit_bytes: int
    ) -> None:
        self.shapes = shapes
        self.limit_bytes = limit_bytes
        self.slot_bytes = shapes.num_values * dtype.itemsize
        self._options: dict[str, Any] = {"dtype": dtype, "device": device}
        self._device = device
        self.clear()

    def clear(self) -> None:
        """Forget what all slots hold and let the memory go, whoever still knows the pool."""
        self._returned: list[Slots] = []
        self._keys, self._values, self._hidden = self._allocate(0)
        self._num_slots, self._num_used = 0, len(_NOWHERE)

    def take(self, count: int) -> Slots:
        """Slots that nobody holds."""
        found: list[Slots] = []
        while count and self._returned:
            slots = self._returned.pop()
            if len(slots) > count:
                self._returned.append(slots[count:])
                slots = slots[:count]
            found.append(slots)
            count -= len(slots)
        if count:
            if self._num_used + count > self._num_slots:
                self._grow(self._num_used + count)
            found.append(np.arange(self._num_used, self._num_used + count))
            self._num_used += count
        return np.concatenate(found) if found else _NOWHERE[:0]

    def give_back(self, slots: Slots) -> None:
        """Let others have them."""
        if len(slots):
            self._returned.append(slots)

    def _grow(self, least: int) -> None:
        """Make room for at least so many slots; what the used ones hold stays."""
        limit = self.limit_bytes // self.slot_bytes
        if self._num_slots >= limit:
            room = self._num_slots * 5 // 4
        else:
            room = limit if self._device.type != "cpu" else min(2 * self._num_slots, limit)
        slots, used = max(least, room, _FIRST_SLOTS), min(self._num_used, self._num_slots)
        keys, values, hidden = self._allocate(slots)
        keys[:, :, :used] = self._keys[:, :, :used]
        values[:, :, :used] = self._values[:, :, :used]
        hidden[:used] = self._hidden[:used]
        if not used:
            keys[:, :, 0] = values[:, :, 0] = hidden[0] = 0
        self._keys, self._values, self._hidden, self._num_slots = keys, values, hidden, slots

    def _allocate(self, slots: int) -> tuple[Tensor, Tensor, Tensor]:
        s, planes = self.shapes, (self.shapes.num_layers, self.shapes.num_heads, slots)
        try:
            return (
                torch.empty(*planes, s.key_size, **self._options),
                torch.empty(*planes, s.value_size, **self._options),
                torch.empty(slots, s.hidden_size, **self._options),
            )
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"{self._device} has no {slots * self.slot_bytes:,} bytes for the prefix cache;"
                f" lower cache_bytes={self.limit_bytes}"
            ) from error

    def load(self, buffers: SlotBuffers, slots: Slots) -> None:
        """Fill all rows and columns of some buffers with keys and values.

        Args:
            buffers: as laid out.
            slots: [rows, columns]; 0 for zeros.
        """
        if not self._num_slots:  # not even the one that holds zeros
            buffers.keys.zero_()
            buffers.values.zero_()
            return
        index = self._index(slots)
        torch.index_select(self._keys, 2, index, out=_flat(buffers.keys))
        torch.index_select(self._values, 2, index, out=_flat(buffers.values))

    def load_row(self, buffers: SlotBuffers, row: int, slots: Slots) -> None:
        """Fill the first columns of one row, hidden states included."""
        index = self._index(slots)
        buffers.keys[:, :, row, : len(slots)] = self._keys.index_select(2, index)
        buffers.values[:, :, row, : len(slots)] = self._values.index_select(2, index)
        buffers.hidden[row, : len(slots)] = self._hidden.index_select(0, index)

    def store(self, buffers: SlotBuffers, rows: Slots, columns: Slots) -> Slots:
        """Keep what stands at some places of some buffers.

        Args:
            buffers: as laid out.
            rows: of each token.
            columns: of each token.

        Returns:
            The slots, one for each token.
        """
        slots = self.take(len(rows))
        to, places = self._index(slots), self._index(rows * buffers.num_columns + columns)
        self._keys.index_copy_(2, to, _flat(buffers.keys).index_select(2, places))
        self._values.index_copy_(2, to, _flat(buffers.values).index_select(2, places))
        self._hidden.index_copy_(0, to, buffers.hidden.flatten(0, 1).index_select(0, places))
        return slots

    def hidden(self, slots: Slots) -> Tensor:
        """Float32 hidden states, [n, hidden size]; NaN for negative slots."""
        if (slots < 0).all():
            size = (len(slots), self.shapes.hidden_size)
            return torch.full(size, torch.nan, device=self._device)
        states = self._hidden.index_select(0, self._index(np.maximum(slots, 0))).float()
        if (slots < 0).any():
            states[self._index(np.flatnonzero(slots < 0))] = torch.nan
        return states

    def _index(self, slots: Slots) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(slots).reshape(-1)).to(self._device)


def _flat(buffer: Tensor) -> Tensor:
    """[layers, heads, rows x columns, size], the same memory."""
    return buffer.view(*buffer.shape[:2], -1, buffer.shape[4])


def slots_of(parts: Iterable[Part[Segment]]) -> Slots:
    """The slots of a cached prefix, one for each token."""
    found = [segment.slots[:length] for segment, _, length in parts]
    return np.concatenate(found) if found else _NOWHERE[:0]
