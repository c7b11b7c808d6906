"""Runs one program and its tests and reports what came of it; imports nothing of ours.

Its text is given to a Python inside the sandbox, which cannot see this package. There it is
process 1: it outlives whatever the program does, and all that is left ends with it. It reads a
request from standard input and writes one line of JSON. The program runs in a child with limits of
its own. That it passed is only believed with a key that the child uses once the tests are over, so
that a program that ends early (`os._exit(0)`) has not passed; a program that looks for the key in
its own memory can find it.
"""

import contextlib
import errno
import json
import os
import resource
import secrets
import selectors
import signal
import sys
import time
import traceback
import types
from typing import Any, NoReturn

_KEPT_BYTES = 2000
_POLL_SECONDS = 0.01
_NUM_FILES = 32


def judge(request: dict[str, Any]) -> tuple[str, str]:
    """Run program and tests in this process; the status and what went wrong."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    names = module.__dict__
    try:
        exec(compile(request["program"], "program.py", "exec"), names)
        try_out(names, request["test"], request["entry_point"])
    except MemoryError:
        return "memory", "MemoryError"
    except BlockingIOError as error:
        is_limit = error.errno == errno.EAGAIN
        return "processes" if is_limit else "failed", f"BlockingIOError: {error}"
    except SystemExit as error:
        return "ended", f"the program ended itself: SystemExit({error.code!r})"
    except BaseException as error:
        where = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != "<string>"]
        line = f" ({where[-1].filename}, line {where[-1].lineno})" if where else ""
        return "failed", f"{type(error).__name__}: {error}"[:_KEPT_BYTES] + line
    return "passed", ""


def try_out(names: dict[str, Any], test: str, entry_point: str) -> None:
    """Run tests among a program's names; call `check` if it is theirs, not the program's."""
    own = names.get("check")
    exec(compile(test, "test.py", "exec"), names)
    check = names.get("check")
    if check is None or check is own:
        return
    if own is not None:
        names["check"] = own  # the entry point, or what it calls
    check(names[entry_point])


def limit(limits: dict[str, Any]) -> None:
    """Limit this process and its children; nothing can raise these again."""
    for name, value in (
        ("AS", limits["memory_bytes"]),
        # Files without a name (memfd_create) are memory that counts towards no address space.
        ("FSIZE", min(limits["scratch_bytes"], limits["memory_bytes"] // _NUM_FILES)),
        ("CPU", int(limits["seconds"]) + 1),
        ("NOFILE", _NUM_FILES),
        ("CORE", 0),
        ("NPROC", limits["processes"] + limits["own_processes"]),
    ):
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def be_child(request: dict[str, Any], output: int, report: int, key: str) -> NoReturn:
    """The child: give up everything, run, report. Never returns."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(report, 3)
    os.closerange(4, 256)
    os.environ.clear()
    os.chdir(request["scratch"])
    limit(request["limits"])
    status, detail = judge(request)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    line = json.dumps({"key": key, "status": status, "detail": detail}) + "\n"
    with contextlib.suppress(OSError):
        os.write(3, line.encode(errors="backslashreplace"))
    os._exit(0)


def watch(
    child: int, output: int, report: int, limits: dict[str, Any]
) -> tuple[str | None, bytes, bytes]:
    """Read what the child writes until it has ended or broken a limit; how it ended."""
    selector = selectors.DefaultSelector()
    for end in (output, report):
        os.set_blocking(end, False)
        selector.register(end, selectors.EVENT_READ)
    deadline = time.monotonic() + limits["seconds"]
    read = {output: bytearray(), report: bytearray()}
    num_written, status, is_over = 0, None, False
    while status is None and not is_over:
        is_over = os.waitpid(child, os.WNOHANG)[0] != 0 if not is_over else True
        for chosen, _ in selector.select(0 if is_over else _POLL_SECONDS):
            data = os.read(chosen.fd, 1 << 16)
            if not data:
                selector.unregister(chosen.fd)
            num_written += len(data) if chosen.fd == output else 0
            read[chosen.fd] = (read[chosen.fd] + data)[-(1 << 15) :]
        if num_written > limits["output_bytes"]:
            status = "output"
        elif time.monotonic() > deadline and not is_over:
            status = "time"
    return status, bytes(read[output]), bytes(read[report])


def told(report: bytes, key: str) -> dict[str, Any] | None:
    """What the child said, if it was the child."""
    for line in report.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            data: dict[str, Any] = json.loads(line)
            if data["key"] == key:
                return data
    return None


def main() -> None:
    """Serve one request."""
    request = json.loads(sys.stdin.buffer.read())
    key, started = secrets.token_hex(16), time.monotonic()
    output_in, output_out = os.pipe()
    report_in, report_out = os.pipe()
    child = os.fork()
    if child == 0:
        be_child(request, output_out, report_out, key)
    os.close(output_out)
    os.close(report_out)
    status, output, report = watch(child, output_in, report_in, request["limits"])
    said = told(report, key)
    if status is not None:
        detail = f"more than {request['limits'][_SETTING[status]]:,} {_UNIT[status]}"
    elif said is not None:
        status, detail = said["status"], said["detail"]
    else:
        status, detail = "ended", "the program ended before its tests were over"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    shown = output[-_KEPT_BYTES:].decode(errors="replace")
    seconds = time.monotonic() - started
    print(json.dumps({"status": status, "detail": detail, "output": shown, "seconds": seconds}))


_SETTING = {"output": "output_bytes", "time": "seconds"}
_UNIT = {"output": "bytes of output", "time": "seconds"}

if __name__ == "__main__":
    main()
