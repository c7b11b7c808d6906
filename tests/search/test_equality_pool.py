"""Processes that compare: killed when slow, replaced when dead, gone at the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stepsearch.search import equality_pool
from stepsearch.search.equality_pool import WorkerPool
from stepsearch.search.errors import ConfigurationError

SLOW = (r"\sum_{k=1}^{10^{9}} \sin(k)", "4")
QUICK = ("x+1", "1+x")


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(timeout=60.0)
    yield pool
    pool.close()


def _pids(pool: WorkerPool) -> list[int]:
    return [worker._process.pid for worker in pool._workers]


def _is_gone(pid: int) -> bool:
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_a_slow_comparison_is_killed_and_its_process_replaced(pool: WorkerPool) -> None:
    assert pool.compare(*QUICK) is True
    before = _pids(pool)
    pool._timeout = 0.5
    assert pool.compare(*SLOW) is None
    assert _is_gone(before[0])
    pool._timeout = 60.0
    assert pool.compare(*QUICK) is True
    assert len(_pids(pool)) == 1
    assert _pids(pool) != before


def test_integers_that_no_signal_can_interrupt_are_killed(pool: WorkerPool) -> None:
    assert pool.compare(*QUICK) is True
    pool._timeout = 1.0
    assert pool.compare("x+9^{9^{9}}", "x+1") is None
    pool._timeout = 60.0
    assert pool.compare("x+1", "x+2") is False


def test_memory_is_limited_and_the_process_then_replaced(pool: WorkerPool) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    assert pool.compare(*QUICK) is True
    (pid,) = _pids(pool)
    limits = Path(f"/proc/{pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max address space"))
    assert int(line.split()[3]) == 2 << 30


def test_a_process_that_died_while_idle_is_replaced_unnoticed(pool: WorkerPool) -> None:
    assert pool.compare(*QUICK) is True
    (pid,) = _pids(pool)
    os.kill(pid, signal.SIGKILL)
    (worker,) = pool._workers
    worker._process.wait()
    assert pool.compare(*QUICK) is True
    assert _pids(pool) != [pid]


def test_threads_share_a_bounded_number_of_processes() -> None:
    pool = WorkerPool(num_workers=2, timeout=60.0)
    pairs = [(f"x+{i}", f"{i % 3}+x") for i in range(30)]
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda pair: pool.compare(*pair), pairs))
    assert results == [i == i % 3 for i in range(30)]
    assert 1 <= len(_pids(pool)) <= 2
    pool.close()
    assert not pool._workers


def test_inside_a_running_loop(pool: WorkerPool) -> None:
    async def ask() -> tuple[bool | None, bool | None]:
        return pool.compare(*QUICK), await asyncio.to_thread(pool.compare, "x", "x+1")

    assert asyncio.run(ask()) == (True, False)


def test_close_ends_what_is_in_flight_and_the_pool_can_go_on(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pool.compare(*QUICK) is True
    (worker,) = pool._workers
    asked, receive = threading.Event(), worker._receive

    def receive_and_tell(seconds: float) -> dict[str, Any] | None:
        asked.set()
        return receive(seconds)

    monkeypatch.setattr(worker, "_receive", receive_and_tell)
    results: list[bool | None] = []
    thread = threading.Thread(target=lambda: results.append(pool.compare(*SLOW)))
    thread.start()
    assert asked.wait(60)
    pool.close()
    thread.join()
    assert results == [None]
    assert _is_gone(worker._process.pid)
    assert pool.compare(*QUICK) is True


def test_an_unguarded_script_leaves_no_process_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from stepsearch.search.task import get_task\n"
        "task = get_task('math')\n"
        "print(task.equal('x+1', '1+x'), task.equal('x+1', 'x+2'))\n"
        "print(*(w._process.pid for w in task.equality._pool._workers))\n"
    )
    (tmp_path / "sympy.py").write_text("raise RuntimeError('a file of the working folder')\n")
    root = str(Path(equality_pool.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": root},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    results, pid = done.stdout.splitlines()
    assert results == "True False"
    assert done.stderr == ""
    assert _is_gone(int(pid))


def test_a_busy_process_ends_by_itself_when_its_caller_is_killed(tmp_path: Path) -> None:
    script = (
        "import threading\n"
        "from stepsearch.search.equality_pool import WorkerPool\n"
        "pool = WorkerPool(timeout=1.0)\n"
        "pool.compare('x+1', '1+x')\n"
        "print(*(w._process.pid for w in pool._workers), flush=True)\n"
        "for worker in pool._workers:\n"
        "    worker.kill = lambda: None\n"
        f"pool.compare(*{SLOW!r})\n"
    )
    root = str(Path(equality_pool.__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": root},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        time.sleep(0.3)
        process.kill()
    assert _is_gone(pid)


def test_a_process_that_cannot_start_is_an_error_that_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equality_pool, "_MODULE", "stepsearch.search.no_such_module")
    pool = WorkerPool()
    for _ in range(2):  # the slot is not lost
        with pytest.raises(ConfigurationError, match=r"exit status 1.*math-verify"):
            pool.compare(*QUICK)


def test_a_missing_math_verify_is_reported() -> None:
    code = (
        "import sys; sys.modules['math_verify'] = None\n"
        "from stepsearch.search.equality_worker import main; main()"
    )
    root = str(Path(equality_pool.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "math_verify" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize("bad", [{"num_workers": 0}, {"timeout": 0.0}, {"timeout": float("nan")}])
def test_impossible_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        WorkerPool(**bad)  # type: ignore[arg-type]
