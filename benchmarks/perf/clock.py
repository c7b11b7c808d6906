"""A virtual clock: an event loop whose time jumps to the next timer when nothing else can run."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from stepsearch.search.batching import cancel_all

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits for a timer: moves the loop's clock instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Virtual seconds, starting at 0."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self
        self.now = 0.0

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Runs it at once: a thread takes no virtual time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def time(self) -> float:
        """Virtual seconds."""
        return getattr(self, "now", 0.0)


def run_virtual(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run to the end; the result and the virtual seconds that passed."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work), loop.now
    finally:
        loop.run_until_complete(_cancel_others())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _cancel_others() -> None:
    """End what is left, as `asyncio.run` does."""
    await cancel_all(asyncio.all_tasks() - {asyncio.current_task()})
