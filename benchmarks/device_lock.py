"""One GPU for one run: locks that all runs of a user on a machine share."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stepsearch.search.errors import ConfigurationError

_log = logging.getLogger(__name__)
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_POLL_SECONDS = 0.2
_mine: list[str] = []
"""What this process had before: CUDA cannot change its devices once it has started."""


@contextmanager
def devices(count: int | None) -> Iterator[list[str]]:
    """Hold so many GPUs that no other run holds, waiting for them; only they are visible.

    The locks are files that the system frees when a process ends, however it ends.

    Args:
        count: GPUs of a run; None takes no lock and changes nothing.

    Yields:
        Their names, as `CUDA_VISIBLE_DEVICES` has them.

    Raises:
        ConfigurationError: there are not so many.
    """
    if count is None:
        yield []
        return
    known = _mine or visible_devices()
    if not isinstance(count, int) or not 1 <= count <= len(known):
        if not known:
            raise ConfigurationError(
                f"devices={count}: there is no GPU here; leave devices=null, which takes no lock"
            )
        raise ConfigurationError(
            f"devices={count}: there are {len(known)} GPUs for this run ({', '.join(known)}); "
            "give a number from 1 to that, or null for no lock"
        )
    with ExitStack() as held:
        names = _wait(held, known, count)
        _mine[:] = names
        before = os.environ.get(_VISIBLE)
        os.environ[_VISIBLE] = ",".join(names)
        _log.info("GPUs of this run: %s", os.environ[_VISIBLE])
        try:
            yield names
        finally:
            if before is None:
                del os.environ[_VISIBLE]
            else:
                os.environ[_VISIBLE] = before


def _wait(held: ExitStack, known: Sequence[str], count: int) -> list[str]:
    """Take all or none, so that two runs never wait for each other."""
    is_told = False
    while True:
        with ExitStack() as taken:
            names: list[str] = []
            for name in known:
                if len(names) < count and _take(taken, name):
                    names.append(name)
            if len(names) == count:
                held.push(taken.pop_all())
                return names
        if not is_told:
            _log.info("waiting for %d of the GPUs %s", count, ", ".join(known))
            is_told = True
        time.sleep(_POLL_SECONDS)


def _take(taken: ExitStack, name: str) -> bool:
    from filelock import FileLock, Timeout

    try:
        taken.enter_context(FileLock(_folder() / f"{name}.lock", timeout=0, is_singleton=False))
    except Timeout:
        return False
    return True


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"stepsearch-devices-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def visible_devices() -> list[str]:
    """The GPUs that this process may use: `CUDA_VISIBLE_DEVICES`, else all of the machine."""
    told = os.environ.get(_VISIBLE)
    if told is not None:
        return [name.strip() for name in told.split(",") if name.strip()]
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.split()
