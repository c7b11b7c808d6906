"""A few processes that compare answers and can be killed, shared by any number of threads."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepsearch.search.errors import ConfigurationError

_MODULE = "stepsearch.search.equality_worker"
_START_SECONDS = 120.0


class Worker:
    """One process and its two pipes, used by one thread at a time.

    Raises:
        ConfigurationError: the process cannot start, for example without math-verify.
    """

    def __init__(self) -> None:
        root = str(Path(__file__).absolute().parents[2])
        path = os.pathsep.join([*(entry or os.getcwd() for entry in sys.path), root])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
            encoding="utf-8",
        )
        self._ids = itertools.count()
        self._is_killed = False
        hello = self._receive(_START_SECONDS)
        if hello is None or "error" in hello:
            self.close()
            reason = hello["error"] if hello else f"exit status {self._process.returncode}"
            raise ConfigurationError(
                f"the process that compares answers could not start ({reason}); "
                "check that math-verify is installed for this Python"
            )

    @property
    def is_alive(self) -> bool:
        """Whether the process can be asked."""
        return not self._is_killed and self._process.poll() is None

    def compare(self, a: str, b: str, seconds: float) -> bool | None:
        """Whether `a` equals `b`; None when it is undecided. The process may be dead afterwards."""
        request = {"id": f"{os.getpid()}-{next(self._ids)}", "a": a, "b": b, "seconds": seconds}
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        reply = self._receive(seconds) or {"id": None}
        # Without a reply the process is dead; a foreign one belongs to another process that shares
        # the pipes after a fork; after a memory error the heap may be full of the attempt.
        if reply["id"] != request["id"] or reply.get("error") == "MemoryError":
            self.kill()
            return None
        equal: bool | None = reply["equal"]
        return equal

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The next line of the process; None when it was killed for taking too long, or died."""
        assert self._process.stdout is not None
        killer = threading.Timer(seconds, self.kill)
        killer.daemon = True
        killer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            killer.cancel()
            killer.join()  # so that it cannot hit the next request
        reply: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return reply

    def kill(self) -> None:
        """End the process at once; a thread that waits for it gets None."""
        self._is_killed = True
        self._process.kill()

    def close(self) -> None:
        """End the process, wait for it and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


class WorkerPool:
    """At most `num_workers` processes, started when first needed, replaced when killed.

    Callable from any thread, in an unguarded script, a notebook or a running loop (where it blocks
    the caller like any function: wait for it in a thread).

    Args:
        num_workers: processes at once; callers beyond that wait their turn.
        timeout: seconds of computation after which a process is killed.
    """

    def __init__(self, num_workers: int = 1, timeout: float = 5.0) -> None:
        if num_workers < 1:
            raise ConfigurationError(f"num_workers={num_workers} must be at least 1")
        if not timeout > 0:
            raise ConfigurationError(f"timeout={timeout} must be a positive number of seconds")
        self._num_workers = num_workers
        self._timeout = timeout
        self._slots: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(num_workers):
            self._slots.put(None)
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._workers: set[Worker] = set()

    def __reduce__(self) -> tuple[type[WorkerPool], tuple[int, float]]:
        return type(self), (self._num_workers, self._timeout)  # processes cannot be sent

    def compare(self, a: str, b: str) -> bool | None:
        """Whether two answers are equal; None when a process gave no answer, or none in time.

        Raises:
            ConfigurationError: a process cannot be started, for example without math-verify.
        """
        worker = self._slots.get()
        is_done = False
        try:
            if worker is None or not worker.is_alive:
                stale, worker = worker, None
                self._discard(stale)
                worker = self._start()
            equal = worker.compare(a, b, self._timeout)
            is_done = True
        finally:
            if not is_done or worker is None or not worker.is_alive:
                self._discard(worker)
                worker = None
            self._slots.put(worker)
        return equal

    def _start(self) -> Worker:
        worker = Worker()
        with self._lock:
            if not self._workers:
                atexit.register(self.close)
            self._workers.add(worker)
        return worker

    def _discard(self, worker: Worker | None) -> None:
        if worker is not None:
            with self._lock:
                self._workers.discard(worker)
            worker.close()

    def close(self) -> None:
        """End all processes. Comparisons in flight become None; later ones start anew."""
        with self._closing:
            atexit.unregister(self.close)
            with self._lock:
                workers = list(self._workers)
            for worker in workers:
                worker.kill()
            for worker_or_none in [self._slots.get() for _ in range(self._num_workers)]:
                self._discard(worker_or_none)
            for _ in range(self._num_workers):
                self._slots.put(None)
