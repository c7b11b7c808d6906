"""One event loop on a thread of its own, for callers that are not asynchronous.

It makes blocking calls work in a plain script, in a notebook and inside a running loop.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from stepsearch.search.batching import cancel_all

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Forgets(Protocol):
    """What holds on to threads or connections of its process."""

    def forget(self) -> None:
        """In a forked child: what was held is the parent's, so make another when it is needed."""
        ...


_HOLDERS: weakref.WeakSet[Forgets] = weakref.WeakSet()


def forget_in_children(holder: Forgets) -> None:
    """Let a holder forget in every process that is forked from now on."""
    _HOLDERS.add(holder)


def _forget_all() -> None:
    for holder in _HOLDERS:
        holder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


class BackgroundLoop:
    """An event loop on a daemon thread, started when it is first used.

    A forked child, in which that thread does not run, starts another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        forget_in_children(self)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; cancelling the future cancels it.

        Raises:
            RuntimeError: called on the loop's own thread, which would wait for itself for ever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("solve() was called from within a search; await asolve() there")
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, without waiting for it."""
        self._running().call_soon_threadsafe(function)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="stepsearch-loop", daemon=True
                )
                self._thread.start()
                atexit.register(self.close)
            return self._loop

    def forget(self) -> None:
        """In a forked child: the loop's thread stayed in the parent."""
        self._lock = threading.Lock()
        self._loop = self._thread = None

    def close(self) -> None:
        """Cancel what runs and end the thread; a later call starts a new one."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped; SystemExit in a task ends that task, not all the others."""
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:  # whoever awaits the task gets it, too
            _log.debug("%s on the event loop, which goes on", type(error).__name__, exc_info=True)


async def _cancel_others() -> None:
    await cancel_all(asyncio.all_tasks() - {asyncio.current_task()})


background = BackgroundLoop()
