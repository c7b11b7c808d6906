"""Asking a backend that lives on another event loop, and hearing of each result as it is there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from stepsearch.search.background import BackgroundLoop

T = TypeVar("T")


class _Mailbox(Generic[T]):
    """Results on their way to a loop; it is woken once for all that came meanwhile."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[T | Exception] = deque()
        self._event = asyncio.Event()
        self._is_called = False

    def put(self, result: T | Exception) -> None:
        """Deliver, from any thread."""
        self._arrived.append(result)
        if not self._is_called and not self._loop.is_closed():
            self._is_called = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_called = False
        self._event.set()

    async def get(self) -> T:
        """The next result."""
        while not self._arrived:
            self._event.clear()
            await self._event.wait()
        result = self._arrived.popleft()
        if isinstance(result, Exception):
            raise result
        return result


async def ask_all(
    loop: BackgroundLoop, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]
) -> AsyncGenerator[T, None]:
    """Run coroutines on the other loop, all at once; yield what each returns when it is there.

    Closing the generator, or an error of one of them, cancels what is not finished.

    Raises:
        Exception: what the first that failed raised.
    """
    mailbox: _Mailbox[T] = _Mailbox()

    async def run(work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        try:
            mailbox.put(await work())
        except Exception as error:
            mailbox.put(error)

    async def run_all() -> None:
        await asyncio.gather(*map(run, works))

    running = loop.submit(run_all())
    try:
        for _ in works:
            yield await mailbox.get()
    finally:
        running.cancel()
