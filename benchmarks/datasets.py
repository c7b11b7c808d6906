"""Data sets: problems with gold answers from a file or from the hub."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import whole
from stepsearch.search.types import Problem

Row = Mapping[str, Any]


class Benchmark(Protocol):
    """A set of problems."""

    @property
    def name(self) -> str:
        """Its name in results."""
        ...

    def problems(self) -> list[Problem]:
        """The problems, with distinct ids, in the same order every time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Problems from a JSON-lines or Parquet file, or from the hub.

    Attributes:
        name: names the set; begins the id of every problem.
        question: column of the question.
        answer: column of the gold answer; numbers become text, lists a comma-separated text.
        path: a `.jsonl`, `.json` (one list) or `.parquet` file; None for the hub.
        hub: name of the data set on the hub; needs the extra `stepsearch[data]`.
        config: configuration on the hub.
        split: split on the hub.
        answer_after: the gold answer is what follows the last occurrence of this in its column.
        id: column of the ids; None numbers the rows, so that a question that occurs twice is two
            problems.
        keep: columns that become `Problem.meta`.
        limit: take so many problems; the smaller of two limits is a part of the larger one.
        seed: which ones.

    Raises:
        ConfigurationError: neither path nor hub, or a limit below 1.
    """

    name: str
    question: str
    answer: str
    path: str | Path | None = None
    hub: str | None = None
    config: str | None = None
    split: str = "test"
    answer_after: str | None = None
    id: str | None = None
    keep: Sequence[str] = ()
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_source(self.name, self.path, self.hub, self.limit)

    def problems(self) -> list[Problem]:
        """Read the problems.

        Raises:
            ConfigurationError: the file or a column is missing, a row is broken, or ids repeat.
        """
        rows = read_rows(self.name, self.path, self.hub, self.config, self.split)
        found = [self._problem(number, row) for number, row in enumerate(rows)]
        require_distinct(found, f"benchmark.id={self.id!r}")
        return subset(found, self.limit, self.seed)

    def _problem(self, number: int, row: Row) -> Problem:
        for column in (self.question, self.answer, *([self.id] if self.id else []), *self.keep):
            if column not in row:
                raise ConfigurationError(
                    f"row {number} of benchmark {self.name!r} has no column {column!r}; it has: "
                    f"{', '.join(map(str, row))}; set benchmark.question and benchmark.answer"
                )
        gold = as_text(row[self.answer])
        if self.answer_after is not None and gold is not None:
            gold = gold.rsplit(self.answer_after, 1)[-1].strip()
        return Problem(
            text=str(row[self.question]),
            id=f"{self.name}-{number if self.id is None else row[self.id]}",
            answer=gold,
            meta={column: row[column] for column in self.keep},
        )


def require_source(name: str, path: str | Path | None, hub: str | None, limit: int | None) -> None:
    """Raise `ConfigurationError` without a source, or for a limit below 1."""
    if path is None and hub is None:
        raise ConfigurationError(f"benchmark {name!r} needs benchmark.path=FILE")
    if limit is not None:
        whole("benchmark.limit", limit, least=1, hint="null takes all")


def read_rows(
    name: str, path: str | Path | None, hub: str | None, config: str | None, split: str
) -> Iterator[Row]:
    """The rows of a file, or without one of a data set on the hub.

    Raises:
        ConfigurationError: they cannot be read, or there are none.
    """
    rows = (
        rows_of_hub(name, hub, config, split) if path is None else rows_of(Path(path).expanduser())
    )
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        raise ConfigurationError(f"benchmark {name!r} holds no problems")


def rows_of_hub(name: str, hub: str | None, config: str | None, split: str) -> Iterable[Row]:
    """The rows of a data set on the hub.

    Raises:
        ConfigurationError: `datasets` is not installed.
    """
    try:
        import datasets  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ConfigurationError(
            f"benchmark {name!r} is on the hub: pip install 'stepsearch[data]', or give "
            "benchmark.path=FILE"
        ) from error
    rows: Iterable[Row] = datasets.load_dataset(hub, config, split=split)
    return rows


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a JSON-lines, JSON or Parquet file.

    Raises:
        ConfigurationError: the file does not exist, has another ending or is broken.
    """
    if not path.is_file():
        raise ConfigurationError(f"benchmark.path={str(path)!r}: there is no such file")
    if path.suffix == ".parquet":
        yield from _rows_of_parquet(path)
    elif path.suffix in (".jsonl", ".json"):
        yield from _rows_of_json(path)
    else:
        raise ConfigurationError(f"benchmark.path={str(path)!r} must end in .jsonl or .parquet")


def _rows_of_json(path: Path) -> Iterator[Row]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not a text in UTF-8: {error}") from error
    lines = [text] if path.suffix == ".json" else text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path}, line {number} is not JSON: {error}") from error
        for row in value if isinstance(value, list) else [value]:
            if not isinstance(row, dict):
                raise ConfigurationError(f"{path}, line {number} is not a JSON object")
            yield row


def _rows_of_parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ConfigurationError(
            f"{path} is a Parquet file: pip install 'stepsearch[data]'"
        ) from error
    yield from parquet.read_table(path).to_pylist()


def as_text(answer: Any) -> str | None:
    """A gold answer as text; None when there is none, which tables also write as NaN."""
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):
        return None
    if isinstance(answer, list | tuple):
        return ", ".join(str(as_text(part)) for part in answer)
    if isinstance(answer, float) and answer.is_integer():
        return str(int(answer))
    return str(answer).strip()


def subset(problems: Sequence[Problem], limit: int | None, seed: int) -> list[Problem]:
    """`limit` of the problems, chosen by a hash of seed and id, in their old order."""
    if limit is None or limit >= len(problems):
        return list(problems)

    def draw(problem: Problem) -> bytes:
        name = f"{seed}\x00{problem.id}".encode(errors="surrogatepass")
        return hashlib.blake2b(name).digest()

    chosen = {problem.id for problem in sorted(problems, key=draw)[:limit]}
    return [problem for problem in problems if problem.id in chosen]


def require_distinct(problems: Sequence[Problem], setting: str) -> None:
    """Raise `ConfigurationError`, naming the setting, when an id occurs twice."""
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise ConfigurationError(f"{setting}: the id {problem.id!r} occurs more than once")
        seen.add(problem.id)
