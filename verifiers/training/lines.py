"""JSON lines that a stage appends to and goes on with after it was stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from stepsearch.search.errors import ConfigurationError

Row = dict[str, Any]


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
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            count += 1
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    return count


def _row(path: Path, number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ConfigurationError(f"{path}, line {number} is not a JSON object")
    return row


class Journal:
    """The output of a stage: one row per key, each on disk before the next one is made.

    A file that was cut off within a line loses that line only. The settings stand beside it, so
    that rows made with other settings are never mixed in. When a stage fails before its first row,
    neither file is left.

    Args:
        path: the file; `PATH.settings.json` is beside it.
        settings: what the rows depend on.

    Attributes:
        done: keys of the rows that are there.

    Raises:
        ConfigurationError: the file was made with other settings.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]) -> None:
        self.path = Path(path).expanduser()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._require_same(json.loads(json.dumps(settings, default=str)))
        self.done: set[str] = set()
        if self.path.exists():
            self._drop_torn_line()
            self.done = {str(row["id"]) for row in read_lines(self.path)}
        self._file: IO[str] = self.path.open("a", encoding="utf-8")

    @property
    def _settings_file(self) -> Path:
        return self.path.with_name(self.path.name + ".settings.json")

    def _require_same(self, settings: Any) -> None:
        beside = self._settings_file
        if self.path.exists() and beside.exists():
            before = json.loads(beside.read_text(encoding="utf-8"))
            changed = sorted(k for k in {*before, *settings} if before.get(k) != settings.get(k))
            if changed:
                raise ConfigurationError(
                    f"{self.path} was made with other settings ({', '.join(changed)}); give "
                    "another out=, or remove the file"
                )
        beside.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")

    def _drop_torn_line(self) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self.path.open("r+b") as file:
                file.truncate(whole)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row, whose `id` is its key."""
        self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()
        self.done.add(str(row["id"]))

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is not None and not self.done:  # the next attempt may have other settings
            self.path.unlink(missing_ok=True)
            self._settings_file.unlink(missing_ok=True)
