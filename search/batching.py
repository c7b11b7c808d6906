"""Batcher: turns many small awaits into few large calls."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")


def is_cancelled() -> bool:
    """Whether somebody cancelled the current task, whatever what it called made of that.

    A `CancelledError` alone does not say so: what is called may raise one of its own, or turn the
    one that it gets into another error, or go on.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def contained(error: BaseException) -> Exception:
    """What a plug-in raised, as an error that ends its problem and not the loop it runs on.

    Raises:
        KeyboardInterrupt: it is somebody's Ctrl-C; other threads than the main one get none.
    """
    if isinstance(error, Exception):
        return error
    is_main = threading.current_thread() is threading.main_thread()
    if isinstance(error, KeyboardInterrupt) and is_main:
        raise error
    return RuntimeError(f"the call ended by {type(error).__name__} from within")


class _Group(NamedTuple, Generic[T, R]):
    items: Sequence[T]
    future: asyncio.Future[Sequence[R | Exception]]


class Batcher(Generic[T, R]):
    """Collects items and hands what is waiting to `call`; belongs to one event loop.

    Work-conserving and without timers: a call is made as soon as one may be in flight, with
    everything that waits then (items submitted in the same turn of the loop are waiting). When a
    call of several items raises, each is tried again alone, so that a failing item fails alone.

    Args:
        call: takes items, returns one result, or what went wrong, per item in the same order. A
            group that is called alone is handed over as it was submitted, and so are its results.
        max_items: a call takes groups until it has so many items; None means no limit.
        max_in_flight: most calls at once; None means no limit, for a backend that batches by
            itself.
    """

    def __init__(
        self,
        call: Callable[[Sequence[T]], Awaitable[Sequence[R | Exception]]],
        *,
        max_items: int | None = None,
        max_in_flight: int | None = 1,
    ) -> None:
        self._call = call
        self._max_items = max_items
        self._max_in_flight = max_in_flight
        self._waiting: deque[_Group[T, R]] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._next_call: asyncio.Task[None] | None = None

    def submit(self, items: Sequence[T]) -> asyncio.Future[Sequence[R | Exception]]:
        """Queue a group of items; the future carries one result, or what went wrong, per item.

        A group stays together. Cancelling the future drops it while it waits; a call is cancelled
        when nobody waits for any of its groups any more.
        """
        future: asyncio.Future[Sequence[R | Exception]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Group(items, future))
        self._call_next()
        return future

    def _call_next(self) -> None:
        """Make a call where one may be in flight; it takes what waits when its turn has come."""
        while self._waiting and self._waiting[0].future.done():
            self._waiting.popleft()
        is_coming = self._next_call is not None and not self._next_call.done()
        if self._waiting and not is_coming and not self._is_full():
            self._next_call = asyncio.get_running_loop().create_task(self._serve())
            self._calls.add(self._next_call)

    def _is_full(self) -> bool:
        if self._max_in_flight is None or len(self._calls) < self._max_in_flight:
            return False
        # One that was cancelled before it began did not take itself out.
        self._calls = {call for call in self._calls if not call.done()}
        return len(self._calls) >= self._max_in_flight

    async def _serve(self) -> None:
        call, self._next_call = self._next_call, None
        batch = self._take()
        self._call_next()
        try:
            if batch:
                await self._run(batch)
        finally:
            self._calls.discard(call)
            self._call_next()

    def _take(self) -> list[_Group[T, R]]:
        """The groups of one call."""
        batch: list[_Group[T, R]] = []
        size = 0
        while self._waiting and (self._max_items is None or size < self._max_items):
            group = self._waiting.popleft()
            if not group.future.done():
                batch.append(group)
                size += len(group.items)
        return batch

    async def _run(self, batch: list[_Group[T, R]]) -> None:
        _cancel_when_unwanted(asyncio.current_task(), batch)
        items = batch[0].items
        if len(batch) > 1:
            items = [item for group in batch for item in group.items]
        try:
            results = await self._attempt(items)
        except BaseException:  # whatever it is, nobody waits for ever
            for group in batch:
                group.future.cancel()
            raise
        start = 0
        for group in batch:
            stop = start + len(group.items)
            if not group.future.done():
                group.future.set_result(results if len(batch) == 1 else results[start:stop])
            start = stop

    async def _attempt(self, items: Sequence[T]) -> Sequence[R | Exception]:
        try:
            results = await self._call(items)
            if len(results) != len(items):
                raise RuntimeError(f"asked for {len(items)} results, got {len(results)}")
            results[:0]  # each group gets a part
            return results
        except BaseException as error:
            if is_cancelled():
                raise asyncio.CancelledError from error
            # Where nobody awaits this any more, it must not await either.
            if len(items) == 1 or isinstance(error, GeneratorExit):
                return [contained(error)] * len(items)
        alone = await asyncio.gather(*(self._attempt([item]) for item in items))
        return [result for [result] in alone]


def _cancel_when_unwanted(call: asyncio.Task[Any] | None, batch: Sequence[_Group[T, R]]) -> None:
    """Cancel a call once all its futures are: a model's time is for searches that still run."""

    def look(_: asyncio.Future[Sequence[R | Exception]]) -> None:
        if call is not None and all(group.future.cancelled() for group in batch):
            call.cancel()

    for group in batch:
        group.future.add_done_callback(look)


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until all have ended, however they do."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def together(works: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """What all of them give, in their order; where one fails, the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await cancel_all(tasks)
        raise


async def each(
    work: Callable[[T], Coroutine[Any, Any, R]], items: Iterable[T], concurrency: int
) -> AsyncGenerator[R, None]:
    """The results of all items in the order they are done, so many of them in progress at once.

    Items are taken one by one, as there is room.
    """
    waiting, end = iter(items), object()
    running: set[asyncio.Task[R]] = set()
    try:
        while True:
            while len(running) < concurrency and (item := next(waiting, end)) is not end:
                running.add(asyncio.create_task(work(cast(T, item))))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        await cancel_all(running)
