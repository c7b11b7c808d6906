"""Helper processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


@contextlib.contextmanager
def child(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the block.

    Args:
        command: program and arguments.
        environment: what is added to this process's environment.
        log: file that gets what the process writes to stderr; its stdout is a pipe.
    """
    with log.open("wb") as messages:
        process: subprocess.Popen[str] = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()


def tail(log: Path) -> str:
    """The last lines of a log, for an error message."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
