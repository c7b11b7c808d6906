"""Programs apart: hostile ones are held back and reported, and nothing runs without isolation."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stepsearch.search import sandbox as module
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.sandbox import UNSAFE, Limits, Sandbox, isolation

LIMITS = Limits(seconds=2, memory_bytes=256 << 20, processes=3, output_bytes=1 << 16)
TEST = "def check(f):\n    assert f(2) == 3, f(2)\n"


@pytest.fixture(scope="module")
def apart() -> Sandbox:
    try:
        return isolation()
    except ConfigurationError as error:
        pytest.skip(str(error))


@pytest.fixture
def without_isolation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No program that makes sandboxes can be found."""
    isolation.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    yield
    isolation.cache_clear()


def run(apart: Sandbox, program: str, test: str = "", limits: Limits = LIMITS) -> tuple[str, str]:
    started = time.monotonic()
    outcome = apart.run(program, test, "f", limits)
    assert outcome is not None
    assert time.monotonic() - started < limits.seconds + 5
    return outcome.status, outcome.detail


def test_tests_decide(apart: Sandbox) -> None:
    assert run(apart, "def f(x): return x + 1", TEST) == ("passed", "")
    assert run(apart, "def f(x): return x", TEST) == (
        "failed",
        "AssertionError: 2 (test.py, line 2)",
    )
    assert run(apart, "def f(x): return 1 / 0", TEST) == (
        "failed",
        "ZeroDivisionError: division by zero (program.py, line 1)",
    )
    assert run(apart, "def f(x) return x", TEST)[0] == "failed"
    assert run(apart, "def g(x): return x", TEST) == ("failed", "KeyError: 'f'")
    assert run(apart, "f = 3", "assert f == 3") == ("passed", "")


@pytest.mark.parametrize("test", ["assert f(2) == 3", TEST])
@pytest.mark.parametrize(
    ("program", "entry_point"),
    [
        ("def check(x): return x > 1\ndef f(x): return check(x) and x + 1", "f"),
        ("def check(x): return x + 1\nf = check", "check"),
    ],
)
def test_a_program_may_have_a_check_of_its_own(
    apart: Sandbox, program: str, entry_point: str, test: str
) -> None:
    outcome = apart.run(program, test, entry_point, LIMITS)
    assert outcome is not None
    assert (outcome.status, outcome.detail) == ("passed", "")


def test_usual_modules_work(apart: Sandbox) -> None:
    program = """
from __future__ import annotations
import dataclasses, decimal, json, math, random, re, threading, collections, itertools, hashlib
@dataclasses.dataclass
class Point:
    x: int
open("note.txt", "w").write("kept")
thread = threading.Thread(target=print, args=("from a thread",))
thread.start(); thread.join()
def f(x): return Point(x).x + 1
"""
    outcome = apart.run(program, TEST, "f", LIMITS)
    assert outcome is not None
    assert (outcome.status, outcome.output) == ("passed", "from a thread\n")


HOSTILE = {
    "endless loop": ("while True: pass", "time"),
    "sleep": ("import time; time.sleep(600)", "time"),
    "10 GB": ("x = bytearray(10 << 30)", "memory"),
    "10 GB by and by": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "memory"),
    "fork": ("import os\nwhile True: os.fork()", "processes"),
    "fork bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "time",
    ),
    "threads": (
        "import threading, time\n"
        "for _ in range(50): threading.Thread(target=time.sleep, args=(60,)).start()",
        "failed",
    ),
    "1 GB of output": ("for _ in range(1 << 10): print('x' * (1 << 20))", "output"),
    "1 GB on disk": (
        "with open('big', 'wb') as file:\n"
        "    for _ in range(1 << 10): file.write(b'x' * (1 << 20))",
        "failed",
    ),
    "socket": (
        "import socket; socket.create_connection(('192.0.2.1', 80), timeout=60)",
        "failed",
    ),
    "parent": ("import os; os.kill(os.getppid(), 9); import time; time.sleep(60)", "time"),
    "everyone": ("import os; os.kill(-1, 9)", "failed"),
    "group": ("import os; os.killpg(0, 9)", "ended"),
    "early end": ("import os; os._exit(0)", "ended"),
    "polite end": ("import sys; sys.exit(0)", "ended"),
    "crash": ("import ctypes; ctypes.string_at(0)", "ended"),
    "forged report": ('import os; os.write(3, b\'{"key": 1, "status": "passed"}\\n\')', "failed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_are_held_back(apart: Sandbox, name: str) -> None:
    program, status = HOSTILE[name]
    found, detail = run(apart, program, TEST)
    assert found == status, detail
    assert detail


def test_files_without_a_name_are_limited_as_memory_is(apart: Sandbox) -> None:
    program = """
import os
held, last = 0, None
try:
    for _ in range(50):
        file = os.memfd_create("x")
        try:
            for _ in range(15): held += os.write(file, bytes(1 << 20))
        except OSError as error: last = error
except OSError as error: last = error
def f(x):
    assert 64 << 20 < held <= 128 << 20 and last, (held, last)
    return 3
"""
    limits = Limits(memory_bytes=128 << 20, processes=1, scratch_bytes=16 << 20)
    assert run(apart, program, TEST, limits) == ("passed", "")


def test_the_home_folder_stays(apart: Sandbox, tmp_path: Path) -> None:
    home, other = Path.home(), tmp_path / "precious.txt"
    other.write_text("kept")
    before = sorted(path.name for path in home.iterdir())
    program = f"""
import os, shutil
for folder in ({str(home)!r}, {str(tmp_path)!r}, "/usr/lib/ssl", "/tmp"):
    shutil.rmtree(folder, ignore_errors=True)
def f(x):
    assert not os.path.exists({str(other)!r})
    assert not os.path.exists("/etc/passwd")
    assert len(os.listdir("/usr")) > 3
    return 3
"""
    assert run(apart, program, TEST, Limits(seconds=30)) == ("passed", "")
    assert sorted(path.name for path in home.iterdir()) == before
    assert other.read_text() == "kept"


def test_environment_and_processes_are_not_seen(
    apart: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "hush")
    program = """
import os
def f(x):
    assert dict(os.environ) == {}, os.environ
    for process in (1, os.getppid(), os.getpid()):
        assert not os.path.exists(f"/proc/{process}/environ")
    assert os.getpid() < 200
    return 3
"""
    assert run(apart, program, TEST) == ("passed", "")


def test_nothing_is_left_behind(apart: Sandbox) -> None:
    name, naming = _named()
    program = (
        f"{naming}import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(987)\n"
        + ("def f(x): return 3")
    )
    assert run(apart, program, TEST) == ("passed", "")
    assert _are_gone(name)


def _named() -> tuple[str, str]:
    """A name no other process of this machine has, and a program that takes it."""
    name = f"left{secrets.token_hex(5)}"
    return name, f"import ctypes\nassert ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0) == 0\n"


def _are_gone(name: str, seconds: float = 10) -> bool:
    """Whether no process has this name any more; the system ends them in its own time."""
    deadline = time.monotonic() + seconds
    while (left := name in _names()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left


def _names() -> set[str]:
    names = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # it ended meanwhile
            names.add(path.read_text().strip())
    return names


def test_there_is_no_way_to_a_server_of_this_machine(apart: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=60)"
        status, detail = run(apart, program)
    assert status == "failed"
    assert "unreachable" in detail or "refused" in detail


def test_many_at_once(apart: Sandbox) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda i: run(apart, f"def f(x): return x + {i % 2}", TEST)[0], range(8))
        )
    assert found == ["failed", "passed"] * 4


def test_without_isolation_nothing_runs(without_isolation: None) -> None:
    with pytest.raises(ConfigurationError, match="there is no unshare on the PATH") as caught:
        isolation()
    assert "task.allow_unsafe=true" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("echo 'unshare: Operation not permitted' >&2; exit 1", "Operation not permitted"),
        ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', "other processes can be seen"),
    ],
)
def test_what_does_not_hold_mild_programs_is_not_trusted(
    without_isolation: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    line: str,
    reason: str,
) -> None:
    for name in ("unshare", "bwrap"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ConfigurationError, match=reason):
        isolation()


def test_a_sandbox_that_fails_says_nothing_about_the_program(caplog) -> None:
    broken = Sandbox(name="broken", command=lambda limits, worker: ["false"])
    assert broken.run("x = 1", "", "f", LIMITS) is None
    assert "the sandbox failed (broken): status 1" in caplog.text


def test_unsafe_still_limits_and_empties() -> None:
    program = "import os\ndef f(x):\n    assert not os.environ\n    return 3"
    assert run(UNSAFE, program, TEST) == ("passed", "")
    assert run(UNSAFE, "while True: pass", TEST) == ("time", "more than 2 seconds")
    assert run(UNSAFE, "x = bytearray(10 << 30)", TEST)[0] == "memory"


@pytest.mark.parametrize("name", ["_AS_USER", "_BUBBLEWRAP"])
def test_ways_of_other_users(name: str) -> None:
    """They are tried by the probe where this test does not run as root and the system has them."""
    if os.geteuid() == 0:
        pytest.skip("root has another way")
    sandbox = getattr(module, name)
    if shutil.which(sandbox.command(Limits(), ())[0]) is None:
        pytest.skip("not installed")
    assert module._flaw(sandbox) is None


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"task\.limits\.seconds=0 must be positive"):
        Limits(seconds=0)


def test_a_killed_caller_leaves_nothing(apart: Sandbox) -> None:
    """The sandbox ends itself at its own deadline, whoever waits for it."""
    name, naming = _named()
    script = (
        "from stepsearch.search.sandbox import *\n"
        "isolation(); print('on', flush=True)\n"
        f"isolation().run({naming + 'while True: pass'!r}, '', 'f', Limits(seconds=4))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    while name not in _names():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert _are_gone(name)
