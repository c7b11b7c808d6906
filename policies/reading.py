"""Reading hidden states of prefixes that were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from stepsearch.policies.answer import Answer
from stepsearch.policies.kv_pool import KvPool, Segment, Slots, slots_of
from stepsearch.policies.prefill import Prefiller, Prefix
from stepsearch.policies.prefix_cache import PrefixCache


class Encoded(NamedTuple):
    """Hidden states of a sequence.

    Attributes:
        hidden: [positions, hidden size] float32 on the model's device, after the final norm; NaN
            from the first token on whose state is not finite.
        computed: tokens computed for this request; what was shared is counted at one request.
        reused: tokens taken from the cache or computed for another request.
    """

    hidden: Tensor
    computed: int
    reused: int


class Reading(NamedTuple):
    """What a reader made of the hidden states of a sequence.

    Attributes:
        values: one for each position.
        computed: as of `Encoded`.
        reused: as of `Encoded`.
    """

    values: list[float]
    computed: int
    reused: int


Reader = Callable[[Tensor], Tensor]
"""From [n, hidden size] states to n numbers, each from its own state alone."""

Result = tuple[Answer, Encoded | Reading]


class _Unread(NamedTuple):
    """A prefix whose states at some slots a reader waits for; pinned until they are read."""

    prefix: Prefix
    slots: Slots
    reader: Reader | None
    answer: Answer


class ReadQueue:
    """Prefixes whose states are to be read: all that became ready in one pass together.

    Args:
        pool: holds the states.
        cache: holds the prefixes.
        prefiller: lets a prefix go that was read.
        separately: read each prefix by itself, so that a result is the same to the last bit.
    """

    def __init__(
        self,
        pool: KvPool,
        cache: PrefixCache[Segment],
        prefiller: Prefiller,
        *,
        separately: bool,
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._prefiller = prefiller
        self._separately = separately
        self._unread: list[_Unread] = []

    def add(
        self, prefix: Prefix, positions: Sequence[int], reader: Reader | None, answer: Answer
    ) -> None:
        """Let a prefix wait for a reader, or for its states themselves without one."""
        self._unread.append(_Unread(prefix, self._slots(prefix, positions), reader, answer))

    def read(self) -> list[Result]:
        """What all asked for; the prefixes are let go."""
        unread, self._unread = self._unread, []
        batches: dict[Any, list[_Unread]] = {}
        for index, one in enumerate(unread):
            alone = index if self._separately or one.reader is None else 0
            batches.setdefault((one.reader, alone), []).append(one)
        found = [
            (one.answer, result)
            for (reader, _), batch in batches.items()
            for one, result in zip(batch, self._results(reader, batch), strict=True)
        ]
        for one in unread:
            self._prefiller.release(one.prefix)
        return found

    def _results(
        self, reader: Reader | None, batch: Sequence[_Unread]
    ) -> Iterator[Encoded | Reading]:
        """What each of a batch asked for."""
        states = self._pool.hidden(np.concatenate([one.slots for one in batch]))
        if reader is None:
            [one] = batch
            yield Encoded(states, one.prefix.computed, one.prefix.reused)
            return
        values = iter(reader(states).tolist())
        for prefix, slots, _, _ in batch:
            yield Reading([next(values) for _ in slots], prefix.computed, prefix.reused)

    def _slots(self, prefix: Prefix, positions: Sequence[int]) -> Slots:
        """Where the states at the positions lie; negative where none was cached."""
        assert prefix.match is not None
        slots = slots_of(self._cache.parts(prefix.match))
        return np.array([slots[p] if p < len(slots) else -1 for p in positions], np.int64)
