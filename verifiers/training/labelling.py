"""The stage `label`: from a file of samples to a file of labelled solutions."""

from __future__ import annotations

import functools
import logging
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from stepsearch.search.errors import ConfigurationError
from stepsearch.search.task import Task, get_task
from stepsearch.verifiers.training.lines import Journal, Row, read_lines
from stepsearch.verifiers.training.outcome import OutcomeLabels, Steps

_log = logging.getLogger(__name__)
_MODEL_FREE = ("outcome", "checker", "both")


def label(
    *, samples: str, out: str, method: str, task: Task, separator: str, workers: int, policy: Any
) -> Path:
    """Label all samples that are not labelled yet; returns the file.

    Raises:
        ConfigurationError: a setting or file does not fit.
    """
    if method not in _MODEL_FREE:
        raise ConfigurationError(f"method={method!r} must be one of {', '.join(_MODEL_FREE)}")
    labels = OutcomeLabels(task=task, steps=method, separator=separator)  # type: ignore[arg-type]
    rows = list(read_lines(samples))
    settings = {"method": method, "separator": separator, "task": task.name}
    with Journal(out, settings) as journal:
        left = [row for row in rows if str(row["id"]) not in journal.done]
        for labelled in _apply(labels, left, workers):
            journal.append(labelled)
        _tell(journal.path)
        return journal.path


def _apply(labels: OutcomeLabels, rows: list[Row], workers: int) -> Iterator[Row]:
    bar = functools.partial(tqdm, total=len(rows), desc="label", unit="question", mininterval=5)
    if workers <= 1:
        yield from bar(map(labels, rows))
        return
    spawn = multiprocessing.get_context("spawn")
    given = (labels.task.name, labels.steps, labels.separator)
    with ProcessPoolExecutor(workers, spawn, _start, given) as pool:
        yield from bar(pool.map(_label, rows, chunksize=16))


_LABELS: list[OutcomeLabels] = []


def _start(task: str, steps: Steps, separator: str) -> None:
    """In a worker: a task holds what cannot be sent to another process."""
    _LABELS[:] = [OutcomeLabels(task=get_task(task), steps=steps, separator=separator)]


def _label(row: Row) -> Row:
    return _LABELS[0](row)


def _tell(path: Path) -> None:
    """How many solutions and labels there are, and how many of them are right."""
    counts = Counter[str]()
    for row in read_lines(path):
        counts.update(_counts(row["solutions"]))
    _log.info("%s: %s", path, dict(counts))


def _counts(solutions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for solution in solutions:
        yield "solutions"
        if solution["outcome"] is None:
            yield "of unknown outcome"
        elif solution["outcome"] >= 0.5:
            yield "right"
        for value in solution["labels"]:
            yield "steps unlabelled" if value is None else "steps labelled"
            if value is not None and value >= 0.5:
                yield "steps right"
