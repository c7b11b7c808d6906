"""A future of some event loop, filled from a device's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Answer:
    """Made on the loop that waits for it; everything but `future` may be used on any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()
        self.future.add_done_callback(self._note)
        self.is_over = False

    def _note(self, _: asyncio.Future[Any]) -> None:
        self.is_over = True

    def is_cancelled(self) -> bool:
        """Whether nobody waits any more."""
        return self.is_over or self._loop.is_closed()

    def set(self, value: Any) -> None:
        """Deliver a value."""
        self._deliver(lambda: self.future.set_result(value))

    def fail(self, error: Exception) -> None:
        """Deliver an error."""
        self._deliver(lambda: self.future.set_exception(error))

    def _deliver(self, act: Callable[[], None]) -> None:
        def deliver() -> None:
            if not self.future.done():
                act()

        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(deliver)
            except RuntimeError:  # closed between the check and the call: nobody waits
                self.is_over = True
