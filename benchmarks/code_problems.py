"""Code problems: functions to complete, judged by tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepsearch.benchmarks.datasets import Row, read_rows, require_distinct, require_source, subset
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.python_task import CodeTests
from stepsearch.search.types import Problem

_NEEDED = ("task_id", "prompt", "entry_point", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeProblems:
    """Problems in the format of HumanEval (Chen et al. 2021, arXiv:2107.03374), for `task=python`.

    A row has `task_id`, `prompt`, `entry_point`, `test` and, where it is known, a
    `canonical_solution`, which has to pass the test.

    Attributes:
        name: names the set; begins the id of every problem.
        path: a `.jsonl`, `.json` or `.parquet` file; None for the hub.
        hub: name of the data set on the hub; needs the extra `stepsearch[data]`.
        config: configuration on the hub.
        split: split on the hub.
        limit: take so many problems; the smaller of two limits is a part of the larger one.
        seed: which ones.

    Raises:
        ConfigurationError: neither path nor hub, or a limit below 1.
    """

    name: str
    path: str | Path | None = None
    hub: str | None = None
    config: str | None = None
    split: str = "test"
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
        require_distinct(found, "task_id")
        return subset(found, self.limit, self.seed)

    def _problem(self, number: int, row: Row) -> Problem:
        for column in _NEEDED:
            if not isinstance(row.get(column), str):
                raise ConfigurationError(
                    f"row {number} of benchmark {self.name!r} has no text in column {column!r}; "
                    f"it has: {', '.join(map(str, row))}; needed: {', '.join(_NEEDED)}"
                )
        tests = CodeTests(
            prompt=row["prompt"],
            entry_point=row["entry_point"],
            test=row["test"],
            canonical_solution=row.get("canonical_solution"),
        )
        return Problem(
            text=row["prompt"], id=f"{self.name}-{row['task_id']}", answer=tests.as_gold()
        )
