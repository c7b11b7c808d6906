"""One thread per device, which runs the forward passes of everything that lives there."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

import torch


class Engine(Protocol):
    """What the thread drives. Its methods are called on that thread only."""

    def has_work(self) -> bool:
        """Whether `work` would do something."""
        ...

    def work(self) -> None:
        """Do a bounded piece of work."""
        ...

    def fail(self, error: Exception) -> None:
        """`work` raised: end everything in flight with this error, and be usable again."""
        ...


class DeviceWorker:
    """Drives the engines of one device in turn, sleeps without work, ends with the last engine.

    The thread holds its engines weakly: an engine that nobody uses any more disappears, and the
    thread with it.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self._engines: list[weakref.ref[Engine]] = []
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, engine: Engine) -> None:
        """Drive an engine from now on; starts the thread when there is none."""
        with self.condition:
            self._engines.append(weakref.ref(engine, self._forget))
            if self._thread is None or not self._thread.is_alive():
                self._stopping = False
                self._thread = threading.Thread(target=self._run, name="stepsearch", daemon=True)
                self._thread.start()

    def remove(self, engine: Engine) -> None:
        """Stop driving an engine and wait until the thread has let go of it."""
        with self.condition:
            self._engines = [e for e in self._engines if e() not in (None, engine)]
            thread = self._thread if not self._engines else None
            self.condition.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def stop(self) -> None:
        """End the thread after the pass that runs now."""
        with self.condition:
            self._stopping = True
            thread = self._thread
            self.condition.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _forget(self, reference: weakref.ref[Engine]) -> None:
        with self.condition:
            self._engines = [e for e in self._engines if e is not reference]
            self.condition.notify_all()

    def _busy(self) -> list[weakref.ref[Engine]]:
        return [e for e in self._engines if (engine := e()) is not None and engine.has_work()]

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        while True:
            with self.condition:
                while not (busy := self._busy()) and self._engines and not self._stopping:
                    self.condition.wait()
                if self._stopping or not self._engines:
                    self._thread = None
                    return
            for reference in busy:
                self._drive(reference)

    @staticmethod
    def _drive(reference: weakref.ref[Engine]) -> None:
        engine = reference()
        if engine is None:
            return
        try:
            engine.work()
        except Exception as error:
            engine.fail(error)


_WORKERS: dict[str, DeviceWorker] = {}
_LOCK = threading.Lock()


def device_worker(device: torch.device) -> DeviceWorker:
    """The worker of a device."""
    with _LOCK:
        return _WORKERS.setdefault(str(device), DeviceWorker())


def _stop_all(workers: Callable[[], list[DeviceWorker]]) -> None:
    for worker in workers():
        worker.stop()


# A daemon thread inside a forward pass would crash the interpreter while it is taken down.
atexit.register(_stop_all, lambda: list(_WORKERS.values()))
