"""Running a causal language model over the prefixes of search trees.

Whatever shares a prefix shares its computation: a radix cache of keys and values, packed prefill,
and one continuous batch of rows per adapter. The work is done on the device's thread; any number of
event loops may ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stepsearch.policies.answer import Answer
from stepsearch.policies.decode import DecodeGroup, Row
from stepsearch.policies.kv_pool import KvPool, Segment
from stepsearch.policies.model import CausalModel
from stepsearch.policies.prefill import Prefiller, Prefix
from stepsearch.policies.prefix_cache import PrefixCache
from stepsearch.policies.reading import Encoded, Reader, Reading, ReadQueue
from stepsearch.policies.sampling import Draw, Token
from stepsearch.policies.worker import device_worker
from stepsearch.search.errors import ConfigurationError, PolicyError

DEFAULT_CACHE_BYTES = 1 << 30
DEFAULT_MAX_ROWS = 32
_MAX_MISSING_BESIDE_ROWS = 1


class Generated(NamedTuple):
    """A continuation that ended.

    Attributes:
        computed: prompt tokens computed for this request; what was shared is counted at one.
        reused: prompt tokens taken from the cache or computed for another request.
    """

    computed: int
    reused: int


class CausalRunner:
    """Encodes prefixes and generates continuations with one model.

    Args:
        model: the model; policies and verifiers on one base share it.
        cache_bytes: limit of the prefix cache; exceeded only by what requests in flight hold.
        max_rows: most continuations in one pass of one adapter; others wait.
        fixed_shapes: every pass has the same shape, so that a result does not depend on what else
            is in flight, to the last bit. Prefixes are then computed one at a time and token by
            token, which is many times slower.

    Raises:
        ConfigurationError: a size is out of range.
    """

    def __init__(
        self,
        model: CausalModel,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        max_rows: int = DEFAULT_MAX_ROWS,
        fixed_shapes: bool = False,
    ) -> None:
        if cache_bytes < 0:
            raise ConfigurationError(f"cache_bytes={cache_bytes} must not be negative")
        if max_rows < 1 + fixed_shapes:
            raise ConfigurationError(f"max_rows={max_rows} must be at least {1 + fixed_shapes}")
        self.model = model
        self.fixed_shapes = fixed_shapes
        self._max_rows = max_rows
        self._inbox: list[Prefix] = []
        self._answers: set[Answer] = set()
        self._start_afresh(cache_bytes)
        self._closed = False
        self._process = os.getpid()
        self._worker = device_worker(model.device)
        self._worker.add(self)

    @property
    def cache_bytes(self) -> int:
        """Bytes in the prefix cache now."""
        return self._cache.num_bytes

    @property
    def cache_limit(self) -> int:
        """Limit of the prefix cache in bytes."""
        return self._cache.limit_bytes

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def raise_limits(self, cache_bytes: int, max_rows: int) -> None:
        """Make the limits at least so large: whoever shares a runner gets what it asked for."""
        self._cache.limit_bytes = max(self._cache.limit_bytes, cache_bytes)
        self._pool.limit_bytes = self._cache.limit_bytes
        self._max_rows = max(self._max_rows, max_rows)
        for group in list(self._groups.values()):
            group.max_rows = self._max_rows

    def load_adapter(self, folder: Path) -> str:
        """Load a LoRA adapter; returns the name that requests pass. See `Adapters.load`."""
        return self.model.load_adapter(folder)

    async def encode(
        self, ids: Sequence[int], positions: Sequence[int], adapter: str | None = None
    ) -> Encoded:
        """Last hidden states at some positions of a sequence.

        Args:
            ids: the sequence; what follows the last position is not computed.
            positions: increasing.
            adapter: a name that `load_adapter` returned, None for the base.

        Raises:
            ValueError: positions or ids are out of range.
            PolicyError: the runner was closed, or the model failed on this sequence.
        """
        encoded: Encoded = await self._read(ids, positions, None, adapter)
        return encoded

    async def read(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        reader: Reader,
        adapter: str | None = None,
    ) -> Reading:
        """What a reader makes of the last hidden states at some positions of a sequence.

        All sequences that became ready in one pass are read at once, so that a device is waited for
        once a pass and not once a sequence.

        Args:
            ids: as of `encode`.
            positions: as of `encode`.
            reader: called on the device's thread, with states of other sequences beside.
            adapter: as of `encode`.

        Raises:
            ValueError: as of `encode`.
            PolicyError: as of `encode`.
        """
        reading: Reading = await self._read(ids, positions, reader, adapter)
        return reading

    async def _read(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        reader: Reader | None,
        adapter: str | None,
    ) -> Any:
        places = list(positions)
        if (
            not places
            or places != sorted(set(places))
            or not 0 <= places[0] <= places[-1] < len(ids)
        ):
            raise ValueError(f"positions={places[:4]}... must increase within the {len(ids)} ids")
        answer = Answer()

        def ready(prefix: Prefix) -> None:
            self._reads.add(prefix, places, reader, answer)

        self._submit(tuple(ids[: places[-1] + 1]), adapter, ready, answer)
        return await self._wait(answer)

    async def generate(
        self,
        ids: Sequence[int],
        draw: Draw,
        on_token: Callable[[Token], bool],
        adapter: str | None = None,
    ) -> Generated:
        """Continue a sequence token by token.

        Args:
            ids: the sequence, at least one id and fewer than the model has positions.
            draw: how to sample.
            on_token: told every sampled token, on the device's thread, so it must be quick;
                returns whether to go on. Must end the continuation before the context is full.
            adapter: a name that `load_adapter` returned, None for the base.

        Raises:
            ValueError: ids are out of range.
            PolicyError: the runner was closed, or the model failed on this sequence.
        """
        answer = Answer()

        def ready(prefix: Prefix) -> None:
            def end(error: Exception | None) -> None:
                if error is None:
                    computed = prefix.computed
                    answer.set(Generated(computed, max(0, len(prefix.ids) - computed)))
                else:
                    answer.fail(error)

            if prefix.num_finite is not None:
                self._prefiller.release(prefix)
                end(PolicyError(f"the model's states are not finite at token {prefix.num_finite}"))
            else:
                row = Row(prefix=prefix, draw=draw, on_token=on_token, on_end=end)
                self._group(adapter).waiting.append(row)

        self._submit(tuple(ids), adapter, ready, answer)
        generated: Generated = await self._wait(answer)
        return generated

    def close(self) -> None:
        """End everything in flight and let the device's thread go. Closing twice does nothing."""
        with self._worker.condition:
            if self._closed:
                return
            self._closed = True
            answers = list(self._answers)
        for answer in answers:
            answer.fail(PolicyError("the runner was closed while this request was in flight"))
        self._worker.remove(self)

    def fail(self, error: Exception) -> None:
        """End everything in flight with an error that no request alone is to blame for.

        What the device holds is given back, since most often it is out of memory.
        """
        with self._worker.condition:
            self._inbox = []
            answers = list(self._answers)
        self._pool.clear()  # the nodes of the cache form cycles, and would keep it for long
        for group in self._groups.values():
            group.rows.clear()  # so do rows and their group
        self._start_afresh(self._cache.limit_bytes)
        for answer in answers:
            answer.fail(PolicyError(f"running the model failed: {type(error).__name__}: {error}"))

    def _start_afresh(self, cache_bytes: int) -> None:
        self._cache: PrefixCache[Segment] = PrefixCache(cache_bytes)
        model = self.model
        self._pool = KvPool(model.shapes, model.dtype, model.device, cache_bytes)
        self._prefiller = Prefiller(model, self._cache, self._pool)
        self._groups: dict[str | None, DecodeGroup] = {}
        self._reads = ReadQueue(
            self._pool, self._cache, self._prefiller, separately=self.fixed_shapes
        )

    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        groups = list(self._groups.values())
        return not self._closed and bool(
            self._inbox or self._prefiller.waiting or any(g.rows or g.waiting for g in groups)
        )

    def work(self) -> None:
        """One pass of prefill, and one token for the rows of every adapter."""
        with self._worker.condition:
            arrived, self._inbox = self._inbox, []
        self._prefiller.waiting.extend(arrived)
        self._prefiller.settle()
        self._place_beside_rows()
        if not self.fixed_shapes:
            self._prefiller.work()
        found = self._reads.read()
        self._cache.evict()
        for answer, result in found:
            answer.set(result)
        for group in list(self._groups.values()):
            group.work()
        if not self.has_work():  # what rows have computed for a prefix that waits is not pinned yet
            self._cache.evict()

    def _place_beside_rows(self) -> None:
        """Let a prefix that lacks one token ride with rows that run anyway.

        A pass of its own would cost as much as a token of every row.
        """
        for prefix in self._prefiller.waiting:
            group = self._group(prefix.adapter)
            if self._prefiller.is_held(prefix):
                continue
            if self.fixed_shapes:
                if not self._prefiller.is_holding:
                    group.feed_prefix(prefix)
            elif group.rows and prefix.num_missing <= _MAX_MISSING_BESIDE_ROWS:
                group.feed_prefix(prefix)

    def _group(self, adapter: str | None) -> DecodeGroup:
        if adapter not in self._groups:
            self._groups[adapter] = DecodeGroup(
                self.model,
                self._prefiller,
                self._cache,
                self._pool,
                adapter,
                self._max_rows,
                self.fixed_shapes,
            )
        return self._groups[adapter]

    def _submit(
        self,
        ids: tuple[int, ...],
        adapter: str | None,
        ready: Callable[[Prefix], None],
        answer: Answer,
    ) -> None:
        if os.getpid() != self._process:
            raise PolicyError(
                "the model was loaded before this process was forked, and its thread stayed behind;"
                " start processes with the spawn method, or load the model in the child"
            )
        if not ids or len(ids) > self.model.max_positions:
            raise ValueError(f"{len(ids)} ids do not fit {self.model.max_positions} positions")
        if not 0 <= min(ids) <= max(ids) < self.model.num_embeddings:
            raise ValueError(f"ids must lie in [0, {self.model.num_embeddings})")
        prefix = Prefix(
            ids=ids,
            adapter=adapter,
            on_ready=ready,
            on_error=answer.fail,
            is_cancelled=answer.is_cancelled,
        )
        with self._worker.condition:
            if self._closed:
                raise PolicyError("the runner is closed; make a new one")
            self._inbox.append(prefix)
            self._answers.add(answer)
            self._worker.condition.notify_all()

    async def _wait(self, answer: Answer) -> Any:
        try:
            return await answer.future
        finally:
            self._answers.discard(answer)
