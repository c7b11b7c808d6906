"""Keys and values of many rows in one buffer, behind the cache interface of transformers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class Shapes(NamedTuple):
    """Sizes of what one token leaves behind."""

    num_layers: int
    num_heads: int
    key_size: int
    value_size: int
    hidden_size: int

    @property
    def num_values(self) -> int:
        """Numbers per token."""
        return (
            self.num_layers * self.num_heads * (self.key_size + self.value_size) + self.hidden_size
        )


class SlotBuffers:
    """Rows of keys, values and hidden states; column c of a row holds its c-th token.

    Grows when asked to. Places that no row uses stay finite, since a masked NaN would still poison
    an attention sum.

    Attributes:
        keys: [layers, heads, rows, columns, key size], positions already applied.
        values: [layers, heads, rows, columns, value size].
        hidden: [rows, columns, hidden size], the last hidden states after the final norm.
    """

    def __init__(self, shapes: Shapes, dtype: torch.dtype, device: torch.device) -> None:
        self.shapes = shapes
        self._options: dict[str, Any] = {"dtype": dtype, "device": device}
        self.num_rows = self.num_columns = 0
        self._allocate(0, 0)

    def _allocate(self, rows: int, columns: int) -> None:
        s, places = self.shapes, rows * columns
        per_token = s.num_layers * s.num_heads
        self._memory = (
            torch.zeros(places * per_token * s.key_size, **self._options),
            torch.zeros(places * per_token * s.value_size, **self._options),
            torch.zeros(places * s.hidden_size, **self._options),
        )
        self._capacity = places
        self._lay_out(rows, columns)

    def _lay_out(self, rows: int, columns: int) -> None:
        s, places = self.shapes, rows * columns
        keys, values, hidden = (
            m[: places * (len(m) // max(1, self._capacity))] for m in self._memory
        )
        shape = (s.num_layers, s.num_heads, rows, columns)
        self.keys, self.values = keys.view(*shape, s.key_size), values.view(*shape, s.value_size)
        self.hidden = hidden.view(rows, columns, s.hidden_size)
        self.num_rows, self.num_columns = rows, columns

    def lay_out(self, rows: int, columns: int) -> None:
        """Make it just so many rows and columns; the contents are lost."""
        if rows * columns > self._capacity:
            self._allocate(0, 0)  # first give back what there is
            self._allocate(rows, columns)
        else:
            self._lay_out(rows, columns)

    def reserve(self, rows: int, columns: int) -> None:
        """Make room for so many rows and columns at least; the contents stay."""
        if rows <= self.num_rows and columns <= self.num_columns:
            return
        old = (self.keys, self.values, self.hidden)
        old_rows, old_columns = self.num_rows, self.num_columns
        self._allocate(max(rows, old_rows), max(columns, old_columns))
        if old_rows and old_columns:
            self.keys[:, :, :old_rows, :old_columns] = old[0]
            self.values[:, :, :old_rows, :old_columns] = old[1]
            self.hidden[:old_rows, :old_columns] = old[2]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` columns of one row to another."""
        self.keys[:, :, target, :length] = self.keys[:, :, source, :length]
        self.values[:, :, target, :length] = self.values[:, :, source, :length]
        self.hidden[target, :length] = self.hidden[source, :length]

    def erase(self, row: int) -> None:
        """Make a row finite again."""
        self.keys[:, :, row] = 0
        self.values[:, :, row] = 0
        self.hidden[row] = 0


class _Places(NamedTuple):
    """Where one forward pass writes and what it sees; see `SlotCache`."""

    rows: Tensor
    columns: Tensor
    width: int


class _SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of the buffers during one forward pass.

    Does not know its `SlotCache`: a cycle would keep buffers that were replaced until it is found.
    """

    def __init__(self, buffers: SlotBuffers, places: _Places, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys = buffers.keys[index].transpose(0, 1)
        self.values = buffers.values[index].transpose(0, 1)
        self.is_initialized = True
        self._places = places
        self._num_columns = buffers.num_columns

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffers exist."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens' columns and return all rows of the pass."""
        rows, columns, width = self._places
        assert self.keys is not None
        assert self.values is not None
        self.keys[rows, :, columns] = key_states.transpose(1, 2)
        self.values[rows, :, columns] = value_states.transpose(1, 2)
        return self.keys[: len(rows), :, :width], self.values[: len(rows), :, :width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All columns, from the first."""
        return self._places.width, 0

    def get_seq_length(self) -> int:
        """Columns before the new ones; masks and positions are always given, so only a bound."""
        return self._places.width - self._places.columns.shape[1]

    def get_max_length(self) -> int:
        """Columns allocated."""
        return self._num_columns


class SlotCache(Cache):
    """The first rows of some buffers, for one forward pass.

    Args:
        buffers: what is read and written.
        columns: [rows, new tokens], where every new token is written.
        width: how many columns the pass sees.
    """

    def __init__(self, buffers: SlotBuffers, columns: Tensor, width: int) -> None:
        self.rows = torch.arange(len(columns), device=columns.device)[:, None]
        places, layers = _Places(self.rows, columns, width), range(buffers.shapes.num_layers)
        super().__init__(layers=[_SlotLayer(buffers, places, i) for i in layers])
