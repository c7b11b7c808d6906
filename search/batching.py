"""Batcher: turns many small awaits into few large calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Collects items and hands what is waiting to `call`; belongs to one event loop.

    Work-conserving and without timers: a call is made as soon as one may be in flight, with
    everything that waits then (items submitted in the same turn of the loop are waiting). When a
    call of several items raises, each is tried again alone, so that a failing item fails alone.

    Args:
        call: takes a list of items, returns one result per item in the same order.
        max_items: most items of one call; None means no limit.
        max_in_flight: most calls at once; None means no limit, for a backend that batches by
            itself.
    """

    def __init__(
        self,
        call: Callable[[list[T]], Awaitable[list[R]]],
        *,
        max_items: int | None = None,
        max_in_flight: int | None = 1,
    ) -> None:
        self._call = call
        self._max_items = max_items
        self._max_in_flight = max_in_flight
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False

    def submit(self, item: T) -> asyncio.Future[R]:
        """Queue an item; the future carries its result. A cancelled future drops the item."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting and not self._is_full():
            batch: list[tuple[T, asyncio.Future[R]]] = []
            limit = self._max_items or len(self._waiting)
            while self._waiting and len(batch) < limit:
                entry = self._waiting.popleft()
                if not entry[1].done():
                    batch.append(entry)
            if batch:
                task = asyncio.get_running_loop().create_task(self._run(batch))
                self._tasks.add(task)
                task.add_done_callback(self._finish)

    def _is_full(self) -> bool:
        return self._max_in_flight is not None and len(self._tasks) >= self._max_in_flight

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._flush()

    async def _run(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._call([item for item, _ in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"asked for {len(batch)} results, got {len(results)}")
        except Exception as error:
            await self._recover(batch, error)
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)

    async def _recover(self, batch: list[tuple[T, asyncio.Future[R]]], error: Exception) -> None:
        if len(batch) > 1:
            await asyncio.gather(*(self._run([entry]) for entry in batch if not entry[1].done()))
        elif not batch[0][1].done():
            batch[0][1].set_exception(error)
