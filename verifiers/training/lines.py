"""JSON lines that a stage appends to and goes on with after it was stopped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.training.settings import changed

if TYPE_CHECKING:
    from filelock import BaseFileLock

Row = dict[str, Any]
MADE_OF = "made_of"
"""Where a row of a stage holds the hash of the row that it was made of."""
_HALVES = "backslashreplace"
"""Halves of characters, which UTF-8 cannot hold, are written as what are JSON's escapes, too."""
_KEPT = ("id", "group", "source", "problem", "answer", MADE_OF)


def read_lines(path: str | Path) -> Iterator[Row]:
    """The rows of a file.

    Raises:
        ConfigurationError: there is no such file, or a line is no JSON object.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigurationError(f"{path}: there is no such file; the stage before writes it")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _row(path, number, line)


def write_lines(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a file as a whole; returns the number of rows."""
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("w", encoding="utf-8", errors=_HALVES) as file:
        for row in rows:
            count += 1
            file.write(_line(row))
    return count


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _row(path: Path, number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ConfigurationError(f"{path}, line {number} is not a JSON object")
    return row


def kept_of(row: Mapping[str, Any]) -> Row:
    """What a labelled row keeps of the row of samples that it was made of."""
    return {key: row[key] for key in _KEPT if key in row}


def digest_of(row: Mapping[str, Any]) -> str:
    """Hash of a row, 16 hex digits, whatever the order of its keys."""
    return blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=8).hexdigest()


class Journal:
    """The output of a stage: a row for each it is given, on disk before the next one is made.

    A file that was cut off within a line loses that line only. The settings stand beside it, so
    that rows made with other settings are never mixed in. When a stage fails before its first row,
    neither file is left. It belongs to one process at a time, until the `with` ends.

    Args:
        path: the file; `PATH.settings.json` is beside it.
        settings: what the rows depend on.

    Raises:
        ConfigurationError: the file was made with other settings, or another process writes it.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]) -> None:
        self.path = Path(path).expanduser()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._done = Counter[tuple[str, str | None]]()
        self._lock = _claim(self.path)
        try:
            self._file = self._open(json.loads(json.dumps(settings, default=str)))
        except BaseException:
            self._lock.release()
            raise

    def _open(self, settings: Any) -> IO[str]:
        self._require_same(settings)
        if self.path.exists():
            self._drop_torn_line()
            self._done.update(map(_key, read_lines(self.path)))
        return self.path.open("a", encoding="utf-8", errors=_HALVES)

    @property
    def _settings_file(self) -> Path:
        return self.path.with_name(self.path.name + ".settings.json")

    def _require_same(self, settings: Any) -> None:
        beside = self._settings_file
        if self.path.exists() and beside.exists():
            before = json.loads(beside.read_text(encoding="utf-8"))
            if names := changed(before, settings):
                raise ConfigurationError(
                    f"{self.path} was made with other settings ({', '.join(names)}); give "
                    "another out=, or remove the file"
                )
        beside.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")

    def _drop_torn_line(self) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self.path.open("r+b") as file:
                file.truncate(whole)

    def left(self, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
        """The rows of which nothing was made yet, each with its hash at `made_of`.

        Several may have the same `id`: as many are left as are missing.

        Raises:
            ConfigurationError: what is there was made of another row with the same `id`.
        """
        done, given, left = Counter(self._done), set[tuple[str, str | None]](), []
        for row in rows:
            marked = {**row, MADE_OF: digest_of(row)}
            key = _key(marked)
            given.add(key)
            if done[key]:
                done[key] -= 1
            else:
                left.append(marked)
        names = {name for name, _ in given}
        for name, _ in self._done.keys() - given:
            if name in names:
                raise ConfigurationError(
                    f"{self.path}: what is there of {name!r} was made of another row than the one "
                    "that is given with this id; give another out=, or remove the file"
                )
        return left

    def append(self, row: Mapping[str, Any]) -> None:
        """Add what was made of a row that was left; it has the same `id` and `made_of`."""
        self._file.write(_line(row))
        self._file.flush()
        self._done[_key(row)] += 1

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
            if error is not None and not self._done:  # the next attempt may have other settings
                self.path.unlink(missing_ok=True)
                self._settings_file.unlink(missing_ok=True)
        finally:
            self._lock.release()


def _claim(path: Path) -> BaseFileLock:
    """Take a file for this process.

    The file of the lock stays: another process could hold it while it is removed.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ConfigurationError(
            f"another process is at work on {path}; wait for it, or give another out="
        ) from error
    return lock


def _key(row: Mapping[str, Any]) -> tuple[str, str | None]:
    return str(row["id"]), row.get(MADE_OF)
