"""Runs programs that a model wrote, apart from everything else, or refuses to.

A program sees a file system of its own (the system's libraries and Python's standard library to
read, a scratch folder to write), no network, no other process and no environment. Time, memory,
processes, output and disk are limited. How this is had differs between machines: `bwrap` or
`unshare` with user namespaces, and for root, `unshare` with a user id that nobody else has. What is
found is tried on mild programs before it is trusted with others.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from stepsearch.search.errors import ConfigurationError

_log = logging.getLogger(__name__)

Status = Literal["passed", "failed", "ended", "time", "memory", "processes", "output"]

_FOLDER = Path(__file__).parent
_SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/urandom")
_ENVIRONMENT = ("PATH=/usr/bin:/bin", "PYTHONHASHSEED=0")
_GRACE_SECONDS = 20.0
_FIRST_USER = 1_000_000_000  # far above what systems give to people, services and containers
_NUM_USERS = 1 << 20
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: wall-clock time.
        memory_bytes: address space of one process; `processes` times as much for all of them. Its
            open files, 32 at most, may hold as much again, since those without a name are memory.
        processes: at once, threads and the program itself included.
        output_bytes: standard output and error together.
        scratch_bytes: files it may write, each of them at most a 32nd of `memory_bytes`.

    Raises:
        ConfigurationError: a limit is not positive.
    """

    seconds: float = 10.0
    memory_bytes: int = 512 << 20
    processes: int = 4
    output_bytes: int = 1 << 20
    scratch_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ConfigurationError(f"task.limits.{name}={value} must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a program and its tests.

    Attributes:
        status: `passed`; `failed` (an exception or a failed test); `ended` (before its tests were
            over); else the limit that it broke.
        detail: the exception or the limit, in words.
        output: the end of what it wrote, at most 2,000 bytes.
        seconds: how long it ran.
    """

    status: Status
    detail: str
    output: str
    seconds: float


Command = Callable[[Limits, Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A way to run programs apart.

    Attributes:
        name: what keeps them apart.
        command: wraps a command for some limits.
        own_processes: processes of the sandbox that count against the program's user id.
    """

    name: str
    command: Command
    own_processes: int = 1

    def run(self, program: str, test: str, entry_point: str, limits: Limits) -> Outcome | None:
        """Run a program and its tests.

        Args:
            program: Python source.
            test: Python source, run after it in the same names; if it defines `check`, that is
                called with the entry point.
            entry_point: name of the function to test.
            limits: what it may use.

        Returns:
            What came of it; None when the sandbox itself failed, which says nothing about the
            program.
        """
        try:
            return self.attempt(program, test, entry_point, limits)
        except _SandboxBrokenError as error:
            _log.warning("the sandbox failed (%s): %s", self.name, error)
            return None

    def attempt(self, program: str, test: str, entry_point: str, limits: Limits) -> Outcome:
        """As `run`; raises when the sandbox itself failed."""
        with _scratch(self is UNSAFE) as scratch:
            request = {
                "program": program,
                "test": test,
                "entry_point": entry_point,
                "scratch": scratch,
                "limits": asdict(limits) | {"own_processes": self.own_processes},
            }
            return _ask(self.command(limits, _worker()), json.dumps(request), limits.seconds)


class _SandboxBrokenError(Exception):
    """The sandbox did not report; the message is what it said instead."""


def _ask(command: Sequence[str], request: str, seconds: float) -> Outcome:
    """Start a worker, give it a request and read its report."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            start_new_session=True,  # so that what it sends to its group does not reach us
        )
    except OSError as error:
        raise _SandboxBrokenError(str(error)) from error
    try:
        told, said = process.communicate(request.encode(), timeout=seconds + _GRACE_SECONDS)
        data = json.loads(told)
    except (subprocess.TimeoutExpired, ValueError) as error:
        reason = "no report in time"
        if isinstance(error, ValueError):
            reason = said.decode(errors="replace").strip() or f"status {process.returncode}"
        raise _SandboxBrokenError(reason) from error
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return Outcome(**data)


@contextmanager
def _scratch(is_on_disk: bool) -> Iterator[str]:
    """The scratch folder, as a program sees it; sandboxes have theirs in memory, at /tmp."""
    if not is_on_disk:
        yield "/tmp"
        return
    with tempfile.TemporaryDirectory(prefix="stepsearch-", ignore_cleanup_errors=True) as folder:
        yield folder


@cache
def _python() -> str:
    """The interpreter itself: that of a virtual environment is a link to it."""
    return os.path.realpath(sys.executable)


def _worker() -> list[str]:
    source = (_FOLDER / "sandbox_worker.py").read_text(encoding="utf-8")
    return [_python(), "-P", "-s", "-S", "-B", "-c", source]


def _visible() -> list[str]:
    """The paths that a Python without packages needs."""
    prefix = os.path.realpath(sys.base_prefix)
    return [*_SHOWN, *([] if prefix.startswith("/usr/") or prefix == "/usr" else [prefix])]


def _unshared(*namespaces: str, user: Callable[[], str]) -> Command:
    """A root of its own, made by a shell script inside new namespaces."""

    def command(limits: Limits, worker: Sequence[str]) -> list[str]:
        script = (_FOLDER / "sandbox.sh").read_text(encoding="utf-8")
        return [
            *("unshare", *namespaces, "--mount", "--net", "--pid", "--ipc", "--uts", "--fork"),
            *("--kill-child", "sh", "-c", script, "sh", str(limits.scratch_bytes), user()),
            *(*_visible(), *_DEVICES, "--", "env", "-i", *_ENVIRONMENT, *worker),
        ]

    return command


def _bubblewrapped(limits: Limits, worker: Sequence[str]) -> list[str]:
    shown = [word for path in _visible() for word in ("--ro-bind-try", path, path)]
    known = [word for pair in _ENVIRONMENT for word in ("--setenv", *pair.split("=", 1))]
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--cap-drop", "ALL", "--clearenv", *known, *shown, "--dev", "/dev"),
        *("--size", str(limits.scratch_bytes), "--tmpfs", "/tmp", "--remount-ro", "/"),
        *("--chdir", "/tmp", "--", *worker),
    ]


def _free_user() -> str:
    """A user id of its own for every program, since processes are counted by user id."""
    return str(_FIRST_USER + (os.getpid() * 1021 + next(_numbers)) % _NUM_USERS)


_AS_ROOT = Sandbox(
    name="unshare and a user id of its own", command=_unshared(user=_free_user), own_processes=1
)
_BUBBLEWRAP = Sandbox(name="bubblewrap", command=_bubblewrapped, own_processes=2)
_AS_USER = Sandbox(
    name="unshare and user namespaces",
    command=_unshared("--user", "--map-root-user", user=str),
    own_processes=2,
)
UNSAFE = Sandbox(
    name="nothing",
    command=lambda limits, worker: ["env", "-i", *_ENVIRONMENT, *worker],
    own_processes=1 << 16,  # processes of the same user outside count too
)


@cache
def isolation() -> Sandbox:
    """The way to run programs apart that this machine has; tried once per process.

    Raises:
        ConfigurationError: there is none; the message says what is missing.
    """
    missing = []
    for sandbox in (_AS_ROOT,) if os.geteuid() == 0 else (_BUBBLEWRAP, _AS_USER):
        reason = _flaw(sandbox)
        if reason is None:
            return sandbox
        missing.append(f"{sandbox.name}: {reason}")
    raise ConfigurationError(
        "programs cannot be run apart from this system, so they are not run: "
        f"{'; '.join(missing)}. Install bubblewrap, or allow user namespaces, or run in a "
        "container that may make namespaces; task.allow_unsafe=true runs them unprotected"
    )


def _flaw(sandbox: Sandbox) -> str | None:
    """Why a sandbox cannot be used; None when mild programs are held back by it as they must."""
    program = (sandbox.command(Limits(), ()))[0]
    if shutil.which(program) is None:
        return f"there is no {program} on the PATH"
    limits = Limits(seconds=10, memory_bytes=256 << 20, processes=3, scratch_bytes=1 << 20)
    request = f"HOME = {str(Path.home())!r}\nMEMORY = {limits.memory_bytes}\n" + _PROBE
    try:
        outcome = sandbox.attempt(request, "", "", limits)
    except _SandboxBrokenError as error:
        return str(error)
    return None if outcome.status == "passed" else outcome.detail


_PROBE = """
import os, socket, time

def refused(action, *arguments):
    try:
        action(*arguments)
    except (OSError, MemoryError):
        return True
    return False

def connect():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))

def multiply():
    children = []
    try:
        for _ in range(12):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)

assert not os.environ, "the environment is not empty"
assert os.getppid() == 1, "other processes can be seen"
assert refused(connect), "there is a network"
assert refused(multiply), "the number of processes is not limited"
assert refused(bytearray, 2 * MEMORY), "memory is not limited"
for folder in ("/", HOME, "/usr", "/etc"):
    assert refused(open, os.path.join(folder, ".stepsearch-probe"), "w"), folder + " can be written"
open("probe", "w").write("x")
"""
